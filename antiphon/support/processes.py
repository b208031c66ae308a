"""Processes that this process has started."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process if it still runs, and wait until it has ended."""
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def describe_end(status: int) -> str:
    """Say how a process has ended. ``status``: its exit status, as ``asyncio.subprocess`` has it:
    negative if a signal has ended it."""
    if status >= 0:
        return f"exit code {status}"
    name = f"signal {-status}"
    with suppress(ValueError):
        name = signal.Signals(-status).name
    return f"{name}, perhaps because memory ran out" if name == "SIGKILL" else name
