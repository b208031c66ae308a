"""Admission control: limits concurrent requests and queues the others fairly between tenants.

Within a tenant requests are served in order; tenants take turns, so one tenant's flood delays the
others by one turn at most."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.errors import Overloaded

__all__ = ["AdmissionQueue"]


class AdmissionQueue:
    """Admits ``max_concurrent_requests`` requests; ``max_queued_requests`` more may wait."""

    def __init__(
        self, max_concurrent_requests: int, max_queued_requests: int, *, retry_after_s: int = 1
    ) -> None:
        self._max_concurrent = max_concurrent_requests
        self._max_queued = max_queued_requests
        self._retry_after_s = retry_after_s
        #: Waiting requests by tenant, in the order of the tenants' turns.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self.running = 0
        self.waiting = 0

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot for the duration of the block. Raises ``Overloaded`` if the queue is full."""
        if self.running < self._max_concurrent:
            self.running += 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, tenant: str) -> None:
        if self.waiting >= self._max_queued:
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
                self._leave_queue(tenant, turn)
            else:  # the slot was granted at the same moment
                self._release()
            raise
        finally:
            self.waiting -= 1

    def _leave_queue(self, tenant: str, turn: asyncio.Future[None]) -> None:
        queue = self._queues[tenant]
        queue.remove(turn)
        if not queue:
            del self._queues[tenant]

    def _release(self) -> None:
        for tenant, queue in self._queues.items():
            turn = queue.popleft()
            del self._queues[tenant]
            if queue:
                self._queues[tenant] = queue  # the tenant moves to the end
            turn.set_result(None)
            return
        self.running -= 1
