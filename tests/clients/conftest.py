"""A server whose model plays scenes, and clients as their users run them.

Run by `make clients` alone: `pytest` without naming this folder leaves it out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server, antiphon
from tests.harness import ServerSetup, server, server_folder, server_setup, shared_server
from tests.offline import block_network
from tests.tools.image_generation.api import serve_images_api_in_thread

__all__ = ["server", "server_folder", "server_setup", "shared_server"]

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / ".venv-clients" / "bin"
#: Names of one model. Some clients send other requests to a model whose name they know.
MODELS = ("tiny", "gpt-6-astra")
_WAIT_S = 120
_IMAGES = 'image_generation.url = "{}"\n'


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect these tests only if the command line names this folder or a file in it."""
    named = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def shared_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerSetup]:
    """The server serves one model under many names. Some clients change their behaviour by
    the name of the model."""
    if not (TOOLS / "python").exists():
        pytest.fail("The clients are not installed: make clients")
    block_network()
    names = '"gpt-5.5", "gpt-5.6-sol", "gpt-5.6-luna", "gpt-6-astra"'
    model = (
        f'[models.tiny]\nengine = "replay"\nsource = "{HERE}/scenes.toml"\naliases = [{names}]\n'
        'reasoning_format = "think"\ntool_format = "hermes"\n'
        'unsupported_modality = "describe"\n'
    )
    toys = HERE.parent / "tools" / "mcp" / "example_server.py"
    folder = tmp_path_factory.mktemp("server")
    tools = f'sandbox.kind = "bubblewrap"\nweb_search.index = "{_index(folder)}"\n'
    tools += f'[mcp.servers.toys]\ncommand = "{sys.executable}"\nargs = ["{toys}", "stdio"]\n'
    with serve_images_api_in_thread() as images:
        tools = f"{_IMAGES.format(images.url)}{tools}"
        yield ServerSetup(settings=tools, model=model)


def _index(folder: Path) -> Path:
    """Create a web search index with one page."""
    pages, index = folder / "pages", folder / "web.db"
    pages.mkdir()
    (pages / "fjords.md").write_text("# Fjords\n\nThe Sognefjord is the longest one: 205 km.")
    (folder / "antiphon.toml").write_text(f'web_search.index = "{index}"\n')
    created = antiphon("index", "add", str(pages), "--as", "https://wiki.example/", cwd=folder)
    assert "1 pages" in created.stdout, created.stdout + created.stderr
    return index


class Shell:
    """Runs programs of clients in a home of their own."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.home = home
        self.work = home / "work"
        self.work.mkdir()

    def run(self, *command: str | Path, **more: str) -> str:
        """Run a command and return its output. If the command fails, the test fails and shows the
        output."""
        environment = {
            "PATH": f"{TOOLS}:{HERE}/node/node_modules/.bin:{os.environ['PATH']}",
            "HOME": str(self.home),
            "OPENAI_BASE_URL": self.server.url,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": str(HERE / "python"),
            "NO_COLOR": "1",
            **more,
        }
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WAIT_S,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Shell:
    return Shell(server, tmp_path)
