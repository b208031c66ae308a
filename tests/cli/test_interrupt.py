"""Ctrl-C at any moment ends a command without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("module", "code"),
    [("msgspec", -signal.SIGINT), ("rich.console", -signal.SIGINT), ("starlette.routing", 130)],
)
def test_interrupt_during_imports_prints_nothing(module: str, code: int, tmp_path: Path) -> None:
    """The process sends itself the signal when it is about to import the module."""
    script = f"""
import importlib.abc, os, runpy, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["antiphon", "serve", "--port", "0", "--store", "memory:"]
runpy.run_module("antiphon", run_name="__main__")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")
