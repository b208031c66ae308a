"""The examples run with the command that their first lines name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, str(example), server.url],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_documents_its_command(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python examples/{example.name}" in text
