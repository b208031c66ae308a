"""A real server, a scripted model, and a real browser that may only reach the server.

The tests run in an environment with Playwright and where a browser is installed: `make browser`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server, serving
from tests.harness import ServerSetup, server, server_folder, server_setup, shared_server

__all__ = ["server", "server_folder", "server_setup", "shared_server"]

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
#: The only host that the browser can resolve is the loopback address.
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # A microphone that hears tones, and that every page may use.
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
SCENES = Path(__file__).with_name("scenes.toml")
#: Milliseconds. The pause between chunks makes the longest answer take a second.
TIMEOUT_MS = 60_000


def model(scenes: Path = SCENES, context_size: int = 9000) -> str:
    """Return the settings of the scripted model."""
    return (
        f'[models.scripted]\nengine = "replay"\nsource = "{scenes}"\n'
        f'context_size = {context_size}\nreasoning_format = "think"\ntool_format = "hermes"\n'
        'unsupported_modality = "describe"\n'
    )


@pytest.fixture(scope="session")
def shared_setup() -> ServerSetup:
    return ServerSetup(settings='mcp.allowed_networks = ["127.0.0.1"]', model=model())


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the key "sesame" of an operator, and the key "open" of a guest."""
    keys = ", ".join(
        f'{{tenant = "t", name = "{name}", sha256 = "{hashlib.sha256(key).hexdigest()}"}}'
        for name, key in (("operator", b"sesame"), ("guest", b"open"))
    )
    settings = f'keys = [{keys}]\noperators = ["operator"]'
    with serving(tmp_path_factory.mktemp("keyed"), settings, model=model()) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="`make browser` installs it")
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=BROWSER, chromium_sandbox=False, args=list(ARGUMENTS), timeout=60_000
        )
        yield launched
        launched.close()


class Visitor:
    """A page of the browser, with all its requests and errors."""

    def __init__(self, page: Any, root: str) -> None:
        self.page = page
        self.root = root
        self.urls: list[str] = []
        self.errors: list[str] = []
        #: What the page's policy stopped.
        self.violations: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_console)

    def _on_console(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.violations.append(message.text)

    @property
    def foreign_urls(self) -> list[str]:
        """The URLs of requests that the page sent to other hosts than the server."""
        own = (self.root + "/", "data:", f"blob:{self.root}")
        return [url for url in self.urls if not url.startswith(own)]

    def open(self, view: str = "") -> Any:
        self.page.goto(f"{self.root}/#/{view}")
        return self.page

    def enter_key(self, key: str) -> None:
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Continue").click()

    def ask(self, text: str) -> Any:
        """Type a message, send it, and return the turn of the page that begins with this
        message."""
        box = self.page.get_by_role("textbox", name="Message")
        box.fill(text)
        box.press("Enter")
        return self.page.get_by_role("article", name="Turn").last

    def answered(self, text: str) -> Any:
        """Send a message and wait for the end of the answer."""
        turn = self.ask(text)
        turn.get_by_role("button", name="Retry").wait_for()
        return turn


@pytest.fixture
def visitor(browser: Any, server: Server) -> Iterator[Visitor]:
    with visiting(browser, server.root) as found:
        yield found


class visiting:
    """Visit a server with a new browser profile. At the end, check that no request went to another
    host, no script failed, and the page's content policy blocked nothing."""

    def __init__(self, browser: Any, root: str, **options: Any) -> None:
        defaults = {"locale": "en-US", "viewport": {"width": 1280, "height": 860}}
        self._context = browser.new_context(**{**defaults, **options})
        self._visitor = Visitor(self._context.new_page(), root)

    def __enter__(self) -> Visitor:
        return self._visitor

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self._context.close()
        if kind is None:
            assert self._visitor.foreign_urls == []
            assert self._visitor.errors == []
            assert self._visitor.violations == []
