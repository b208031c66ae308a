"""The processes that the code under test has started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def child_processes() -> set[int]:
    """Return the ids of the child processes of this process."""
    pids: set[int] = set()
    for each in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # the thread has ended
            pids |= {int(pid) for pid in each.read_text().split()}
    return pids


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process, and those that it has started, have started: id →
    command line."""
    found: dict[int, str] = {}
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, each.read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
            found |= {child: command.decode().strip()} | descendants(child)
    return found


def socket_path(pid: int) -> Path:
    """Return the path of the Unix socket on which a process listens."""
    mine = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    (found,) = {row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in mine}
    return Path(found)


async def kill_next(others: set[int], *, count: int) -> None:
    """Kill children that are not in ``others``, each as soon as it exists."""
    killed: set[int] = set()
    while len(killed) < count:
        for pid in child_processes() - others - killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0)
