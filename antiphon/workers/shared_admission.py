"""The admission of a worker: its requests take slots that all workers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon.http.middleware.auth import RequestLimits
from antiphon.ipc.client import CallClient

__all__ = ["SharedAdmission"]


class SharedAdmission:
    """``Admission`` over the hub. It counts the requests of this worker. ``on_admitted`` is called
    with the seconds that a request has waited, by ``clock``."""

    def __init__(
        self,
        hub: CallClient,
        *,
        clock: Callable[[], float],
        on_admitted: Callable[[float], None],
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._on_admitted = on_admitted
        self._slots = 0
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def waiting(self) -> int:
        return self._waiting.total()

    def running_of(self, tenant: str) -> int:
        return self._running.get(tenant, 0)

    def waiting_of(self, tenant: str) -> int:
        return self._waiting.get(tenant, 0)

    def update(self, limits: RequestLimits) -> None:
        """Nothing: the supervisor applies new limits."""

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot for the duration of the block. Raises ``Overloaded`` if the queue is full."""
        self._slots += 1
        slot, arrived = self._slots, self._clock()
        try:
            with _Counted(self._waiting, tenant):
                if not await self._hub.call("try_enter", slot, tenant, returns=bool):
                    await self._hub.call("enter", slot, tenant)
            self._on_admitted(self._clock() - arrived)
            with _Counted(self._running, tenant):
                yield
        finally:
            self._hub.notify("leave", slot)


class _Counted:
    """Counts a request of a tenant within a block."""

    __slots__ = ("_counts", "_tenant")

    def __init__(self, counts: Counter[str], tenant: str) -> None:
        self._counts = counts
        self._tenant = tenant

    def __enter__(self) -> None:
        self._counts[self._tenant] += 1

    def __exit__(self, *exc: object) -> None:
        self._counts[self._tenant] -= 1
        if not self._counts[self._tenant]:
            del self._counts[self._tenant]
