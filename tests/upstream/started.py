"""llama.cpp's own server as a process, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCRIPT = Path(__file__).with_name("llama_server.py")


@contextmanager
def llama_server_process(
    model: Path, *projector: Path
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield its address and its process, which may be killed."""
    with subprocess.Popen(
        [sys.executable, str(_SCRIPT), str(model), "0", *map(str, projector)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip(), process
        process.stdin.close()
        process.wait(20)


@contextmanager
def llama_server(model: Path, *projector: Path) -> Iterator[str]:
    """Yield its address."""
    with llama_server_process(model, *projector) as (url, _):
        yield url
