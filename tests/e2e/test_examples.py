"""The examples run with the command that their first lines name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.config.model import DEFAULT_MODEL
from tests.e2e.server import Server, serving
from tests.real.embedded_model import smollm2

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


#: What an example prints at least, with the model that `make serve` serves.
PRINTS = {
    "03_function_tool": "called with {'city':",
    "04_structured_output": "name='",
    "05_conversation": "4 items in the conversation",
    "06_custom_engine": " tokens",
}


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the default model with its own sampling, as `make serve` starts it."""
    settings = f'cache_dir = "{smollm2().parent}"\n'
    model = f'[models.{DEFAULT_MODEL}]\nsource = "{DEFAULT_MODEL}"\n'
    with serving(tmp_path_factory.mktemp("default"), settings, model=model) as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, default_server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, str(example)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": default_server.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert PRINTS.get(example.stem, " ") in ended.stdout
    assert "<tool" not in ended.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_bounds_its_answers(example: Path) -> None:
    """A small model may repeat itself without end."""
    text = example.read_text()
    calls = len(re.findall(r"responses\.(?:create|stream)\(", text))
    assert text.count("max_output_tokens=") + text.count('tool_choice="required"') >= calls
    if "responses.parse(" in text:
        assert text.count("max_length=") == text.count(": str")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_documents_its_command(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python examples/{example.name}" in text
