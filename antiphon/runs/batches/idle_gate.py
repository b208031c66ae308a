"""Lets requests of batches run only while the server has nothing else to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import running

_T = TypeVar("_T")
#: Seconds between two looks at the other requests of the server.
_INTERVAL_S = 0.02


class IdleGate:
    """Runs work while the server has no other requests. If another request arrives, the work is
    cancelled, and begins again later: so another request waits for it at most ``_INTERVAL_S`` and
    one token.

    ``others``: returns how many other requests run or wait. ``limit``: how many works run at a
    time.
    """

    def __init__(self, others: Callable[[], int], limit: int) -> None:
        self._others = others
        self._slots = FairLimiter(limit)
        #: How often work was interrupted.
        self.interruptions = 0

    async def run(self, tenant: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``work`` to its end while the server is idle, and return its result. Tenants take
        turns."""
        async with self._slots.slot(tenant):
            while True:
                await self._wait_until_idle()
                async with running(work()) as attempt:
                    while not attempt.done() and not self._others():
                        await asyncio.wait((attempt,), timeout=_INTERVAL_S)
                    if attempt.done():
                        return attempt.result()
                self.interruptions += 1

    async def _wait_until_idle(self) -> None:
        while self._others():
            await asyncio.sleep(_INTERVAL_S)
