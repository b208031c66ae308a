"""Fail a test that blocks the event loop for a long time."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon.support.logs import open_log
from antiphon.support.loop_watchdog import BLOCKED, LoopWatchdog

#: Seconds of computation. Far more than any request may take.
_MAX_STALL_S = 5.0


@asynccontextmanager
async def without_stalls() -> AsyncIterator[None]:
    """Fail at the end of the block if one callback of the loop computed for too long.

    The clock is the CPU time of the loop's thread. In wall time, a callback also waits: for a
    processor, for the disk, or for the GIL of a thread that waits for one. On a busy machine,
    these waits are long, and no code of the test is to blame for them.
    """
    log = io.StringIO()
    watchdog = LoopWatchdog(
        _MAX_STALL_S,
        log=open_log(log, style="human"),
        clock=_thread_clock(),
        cpu_wait=lambda _: 0.0,
    )
    async with watchdog:
        yield
    assert BLOCKED not in log.getvalue(), log.getvalue()


def _thread_clock() -> Callable[[], float]:
    """Return a function that reads the CPU time of the calling thread from any thread.

    Systems without such a clock (macOS, Windows) get a clock that stands still.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    clock_id = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock_id)
