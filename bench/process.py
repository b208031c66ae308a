"""Start a measured server (``bench.servers``) in its own process and read its resource use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

#: Words of a long answer and of a short one.
WORDS, FEW = 500, 8
#: Context size of the real model, in tokens.
CONTEXT = 4096


class Process(Struct):
    """A running server: its port and its resource use."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in seconds. The kernel counts it in nanoseconds."""
        spent = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):  # the thread has ended
                spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e9

    @property
    def rss_bytes(self) -> int:
        """Resident memory, in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def family_cpu_s(pid: int) -> float:
    """CPU time of a process and of its children, in seconds."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(Process(port=0, pid=each).cpu_s for each in (pid, *map(int, children)))


@contextmanager
def running(kind: str, *arguments: str, source: Path | None = None) -> Iterator[Process]:
    """Start a server, wait until it has printed its port, and stop it on exit.

    ``source``: the root of another source tree to run instead of this one.
    """
    command = [sys.executable, "-m", "bench.servers", kind, *arguments]
    environment = os.environ | {"PYTHONPATH": str(source)} if source else None
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=source, env=environment
    )
    try:
        assert process.stdout is not None
        yield Process(port=int(process.stdout.readline()), pid=process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)
