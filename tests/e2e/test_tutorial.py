"""The snippets of the tutorial run, in order, against the server that `make serve` starts."""

from __future__ import annotations

import io
import itertools
import re
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from antiphon.config.model import DEFAULT_MODEL
from tests.e2e.server import Server
from tests.harness import ServerSetup
from tests.real.embedded_model import smollm2

pytestmark = pytest.mark.e2e

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("*.md"))
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server_setup() -> ServerSetup:
    """A server of the default model with its own sampling, as `make serve` starts it."""
    settings = f'cache_dir = "{smollm2().parent}"\n'
    model = f'[models.{DEFAULT_MODEL}]\nsource = "{DEFAULT_MODEL}"\n'
    return ServerSetup(settings=settings, model=model)


def snippets(page: Path, language: str, root: str) -> list[str]:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace(ADDRESS, root) for block in blocks]


def run_shell(command: str) -> str:
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run_python(code: str) -> str:
    """Run the code in this process, which has imported its packages already."""
    names: dict[str, Any] = {"__name__": "tutorial"}
    with redirect_stdout(io.StringIO()) as printed:
        try:
            exec(compile(code, "tutorial", "exec", dont_inherit=True), names)
        finally:
            names["client"].close()
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run(page: Path, server: Server) -> None:
    code = snippets(page, "python", server.root)
    assert len(code) >= 2
    assert run_python("\n".join(code)).strip()
    for command in snippets(page, "sh", server.root):
        assert '"output"' in run_shell(command)


def test_pages_lead_to_the_next() -> None:
    assert len(PAGES) == 6
    for page, following in itertools.pairwise(PAGES):
        assert f"]({following.name})" in page.read_text().rstrip().splitlines()[-1]
