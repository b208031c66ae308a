"""The admission control of a worker. A slot is the permission to run one request, so each request
needs a slot. All workers share the slots. The hub in the supervisor process grants the slots (see
hub.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon.ipc.client import CallClient
from antiphon.limits.requests import RequestLimits

from .hub import SlotGrant

#: Seconds for which a tenant may use its slot again, if most slots were free.
_REUSE_S = 0.05


class SharedAdmission:
    """The ``Admission`` of a worker. It takes its slots from the hub in the supervisor process, and
    counts the running and waiting requests of this worker.

    An RPC call to the hub takes a tenth of the time of a short request. To save such calls, the
    worker keeps a slot for a moment after a request, if most slots are free. The worker uses this
    slot for the next request of the same tenant.

    ``hub``: client for RPC calls to the hub. ``on_admitted``: called with the seconds that a
    request has waited. ``clock``: returns seconds.
    """

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
        #: Slots that no request uses, by tenant. The timer returns them to the hub.
        self._idle: dict[str, list[_Slot]] = {}
        self._timer: asyncio.TimerHandle | None = None
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
        """Do nothing: the hub in the supervisor process applies new limits."""

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Context manager that holds a slot while the ``with`` block runs. Raises ``Overloaded`` if
        too many requests wait for a slot."""
        arrived = self._clock()
        slot = self._take_idle(tenant)
        try:
            if slot is None:
                slot = self._new_slot()
                with _Counted(self._waiting, tenant):
                    await self._enter(slot, tenant)
            self._on_admitted(self._clock() - arrived)
            with _Counted(self._running, tenant):
                yield
        finally:
            if slot is not None:
                self._leave(slot, tenant)

    def _new_slot(self) -> _Slot:
        self._slots += 1
        return _Slot(self._slots)

    async def _enter(self, slot: _Slot, tenant: str) -> None:
        grant = await self._hub.call("try_enter", slot.number, tenant, returns=SlotGrant)
        if grant is SlotGrant.NONE:
            await self._hub.call("enter", slot.number, tenant)
        elif grant is SlotGrant.REUSABLE:
            slot.reusable_until = self._clock() + _REUSE_S

    def _leave(self, slot: _Slot, tenant: str) -> None:
        if self._clock() >= slot.reusable_until:
            self._hub.notify("leave", slot.number)
            return
        self._idle.setdefault(tenant, []).append(slot)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REUSE_S, self._leave_idle)

    def _take_idle(self, tenant: str) -> _Slot | None:
        """Return an unused slot that this worker still holds for the tenant. Returns None if there
        is no such slot."""
        idle = self._idle.get(tenant)
        return idle.pop() if idle else None

    def _leave_idle(self) -> None:
        """Give all unused slots back to the hub."""
        self._timer = None
        for slots in self._idle.values():
            for slot in slots:
                self._hub.notify("leave", slot.number)
        self._idle.clear()


class _Slot:
    """A slot that the hub has granted to this worker. ``number``: a number that this worker has
    chosen for the slot. ``reusable_until``: the time until which further requests may use the
    slot."""

    __slots__ = ("number", "reusable_until")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reusable_until = 0.0


class _Counted:
    """Context manager that counts a request of a tenant as running or waiting for as long as the
    ``with`` block runs."""

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
