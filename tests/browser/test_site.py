"""The documentation site, served from a folder as any web server does, and its search."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from scripts.site import ROOT
from tests.browser.conftest import visiting

PYTHON = ROOT / ".venv-site" / "bin" / "python"


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a site that was built now."""
    if not PYTHON.exists():
        pytest.skip("`make browser` installs the site generator")
    built = subprocess.run(
        [PYTHON, "-m", "scripts.site"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stdout + built.stderr
    handler = partial(Handler, directory=ROOT / "build" / "site")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_search_finds_a_page(browser: Any, site: str) -> None:
    with visiting(browser, site) as visitor:
        page = visitor.page
        page.goto(site)
        page.get_by_role("heading", name="Quick start").wait_for()
        page.get_by_role("button", name="Search").first.click()
        page.keyboard.type("bubblewrap")
        page.get_by_text("Code runs under bubblewrap").click()
        page.wait_for_url("**/code-interpreter*#isolation*")
        page.get_by_role("heading", name="Isolation").wait_for()
