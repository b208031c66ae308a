"""Room: how many runs may go on, who waits, and who is sent away.

First come first served within a tenant, turn and turn about between tenants, so that one tenant's
flood costs the others nothing but their turn. It knows neither requests nor runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.errors import Overloaded

__all__ = ["AdmissionQueue"]


class AdmissionQueue:
    """At most ``max_running`` slots are taken and ``max_waiting`` callers wait for one."""

    def __init__(self, max_running: int, max_waiting: int, *, retry_after_s: int = 1) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._retry_after_s = retry_after_s
        #: Who waits, by tenant; the tenant whose turn it is comes first.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Holds a slot for the length of the block. Raises ``Overloaded`` at once if even the
        queue is full."""
        if self.running < self._max_running:
            self.running += 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if self.waiting >= self._max_waiting:
            wait = self._retry_after_s
            raise Overloaded(
                f"The server is busy: too many requests are waiting. Please try again in {wait}s.",
                retry_after_s=wait,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(tenant, turn)
            else:  # the slot came in the same moment
                self._pass_on()
            raise
        finally:
            self.waiting -= 1

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[tenant]
        queue.remove(turn)
        if not queue:
            del self._queues[tenant]

    def _pass_on(self) -> None:
        for tenant, queue in self._queues.items():
            turn = queue.popleft()
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue  # to the back
            turn.set_result(None)
            return
        self.running -= 1
