"""Fail a test that blocks the event loop for a long time."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.support.logs import open_log
from antiphon.support.loop_watchdog import BLOCKED, LoopWatchdog

__all__ = ["without_stalls"]

#: Far more than any request may take, also on a machine that is busy with other tests.
_MAX_STALL_S = 5.0


@asynccontextmanager
async def without_stalls() -> AsyncIterator[None]:
    """Fail at the end of the block if its work blocked the loop, not if the machine was busy."""
    log = io.StringIO()
    async with LoopWatchdog(_MAX_STALL_S, log=open_log(log, style="human")):
        yield
    assert BLOCKED not in log.getvalue(), log.getvalue()
