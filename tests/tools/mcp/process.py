"""Start the server of ``example_server.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOYS = Path(__file__).with_name("example_server.py")


class Toys:
    """A running server. ``log``: the recorded calls."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/mcp"
        self._log = log

    @property
    def log(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def sse(self) -> str:
        """The address at which each session has a connection of its own."""
        return f"{self.root}/sse"

    @property
    def session_count(self) -> int:
        """The number of open sessions at ``sse``."""
        return self.log.count("session begins") - self.log.count("session ends")


@contextmanager
def run_server(log: Path, port: int = 0) -> Iterator[Toys]:
    """Run the server for the duration of a context."""
    process = subprocess.Popen(
        [sys.executable, str(TOYS), "http", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOYS_LOG": str(log)},
    )
    try:
        yield Toys(process, log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
