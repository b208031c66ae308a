"""A concurrency limit that tenants share fairly. A slot is the permission to run one operation.

A free slot goes to the waiting tenant that holds the fewest slots. If several tenants hold equally
few slots, the slot goes to the tenant whose last slot was granted longest ago. Within a tenant,
slots are granted by priority, then in order of arrival. Therefore a tenant with many requests can
delay another tenant at most by the duration of one operation, and only while all slots are taken.

An operation may need several slots at once (``amount``), such as bytes of memory. If the operation
whose turn it is needs more than are free, the others wait behind it, so it is served at some time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol


def tenant_share(total: int, share: float) -> int:
    """Return how many of ``total`` slots a tenant may hold. The result is at least 1. ``share``:
    the tenant's share, 0 to 1."""
    return max(1, int(total * share))


def _fits(held: int, amount: int, limit: int) -> bool:
    """Return whether ``amount`` more slots are within the limit, or there are no others."""
    return held < limit and held + min(amount, limit) <= limit


class _Grant(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...


class _Turn(NamedTuple):
    """A caller that waits for a slot. ``granted``: a future that completes when the caller gets a
    slot. ``amount``: how many slots it needs."""

    priority: int
    granted: _Grant
    amount: int = 1


class _Limiter(Protocol):
    def try_acquire(self, tenant: str) -> bool: ...

    async def acquire(self, tenant: str, *, priority: int = 0) -> None: ...

    def release(self, tenant: str) -> None: ...


class LimiterSlot:
    """An async context manager that waits for a slot of a limiter and holds the slot until the
    block ends."""

    __slots__ = ("_limiter", "_priority", "_tenant")

    def __init__(self, limiter: _Limiter, tenant: str, priority: int = 0) -> None:
        self._limiter = limiter
        self._tenant = tenant
        self._priority = priority

    async def __aenter__(self) -> None:
        if not self._limiter.try_acquire(self._tenant):
            await self._limiter.acquire(self._tenant, priority=self._priority)

    async def __aexit__(self, *exc: object) -> None:
        self._limiter.release(self._tenant)


class FairLimiter:
    """Limits how many operations run at a time, and shares the slots fairly between tenants. A slot
    is the permission to run one operation.

    There are ``max_concurrent`` slots. A tenant may hold at most ``max_per_tenant`` slots. None
    means that a tenant may hold all slots.
    """

    def __init__(self, max_concurrent: int, *, max_per_tenant: int | None = None) -> None:
        self._max_concurrent = max_concurrent
        self._max_per_tenant = max_concurrent if max_per_tenant is None else max_per_tenant
        self._queues: dict[str, deque[_Turn]] = {}
        self._held: dict[str, int] = {}
        #: Tenant → number of its last grant, for tenants that hold a slot or wait for one.
        self._last_grant: dict[str, int] = {}
        self._grants = 0
        self.running = 0
        self.waiting = 0

    def slot(self, tenant: str, *, priority: int = 0) -> LimiterSlot:
        """Return a context manager that waits for a slot and holds the slot until the block ends.
        ``priority`` is passed to ``acquire``."""
        return LimiterSlot(self, tenant, priority)

    def set_limits(self, max_concurrent: int, *, max_per_tenant: int | None = None) -> None:
        """Change the limits. Slots that are held stay held, even if the new limit is smaller."""
        self._max_concurrent = max_concurrent
        self._max_per_tenant = max_concurrent if max_per_tenant is None else max_per_tenant
        self._grant_waiting()

    async def acquire(self, tenant: str, *, priority: int = 0, amount: int = 1) -> None:
        """Wait for a slot, and take it. The caller must pass the same tenant to ``release``.
        ``priority`` orders the waiting callers of one tenant: a lower value is served first.
        ``amount``: the number of slots. A caller that needs more than a limit allows gets them when
        it is alone.

        Another task may call ``reject_newest``. If that call removes this caller from the queue,
        ``acquire`` raises the error that was passed to ``reject_newest``.
        """
        if self.try_acquire(tenant, amount):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = self.enqueue(tenant, granted, priority=priority, amount=amount)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._leave_queue(tenant, turn)
            elif granted.exception() is None:  # the slot was granted at the same moment
                self.release(tenant, amount)
            raise

    def enqueue(self, tenant: str, granted: _Grant, *, priority: int = 0, amount: int = 1) -> _Turn:
        """Queue a caller that could not take a slot. ``granted`` completes when it has one."""
        turn = _Turn(priority, granted, amount)
        self._insert(self._queues.setdefault(tenant, deque()), turn)
        self.waiting += 1
        self._grant_waiting()  # it may need fewer slots than the one that others wait behind
        return turn

    def try_acquire(self, tenant: str, amount: int = 1) -> bool:
        """Take a slot for this tenant if it can have one now. Returns whether a slot was taken."""
        is_free = self.has_free_slot(tenant, amount)
        if is_free:
            self._grant(tenant, amount)
        return is_free

    def release(self, tenant: str, amount: int = 1) -> None:
        """Free a slot that this tenant holds."""
        self.running -= amount
        self._held[tenant] -= amount
        if self._queues:
            self._grant_waiting()
        self._forget_idle(tenant)

    def _grant_waiting(self) -> None:
        """Grant the free slots to waiting callers."""
        while (waiting := self._next_tenant()) is not None:
            turn = self._take_turn(waiting, 0)
            if not turn.granted.done():  # else: cancelled, and its caller has not run yet
                self._grant(waiting, turn.amount)
                turn.granted.set_result(None)

    def has_free_slot(self, tenant: str, amount: int = 1) -> bool:
        """Return whether this tenant could take a slot now, so that ``acquire`` would not wait."""
        return (
            _fits(self.running, amount, self._max_concurrent)
            and _fits(self.running_of(tenant), amount, self._max_per_tenant)
            and (not self._queues or (tenant not in self._queues and self._first() is None))
        )

    def is_half_free(self, tenant: str) -> bool:
        """Return whether less than half of all slots are in use, and this tenant holds less than
        half of the slots that it may hold."""
        return (
            2 * self.running < self._max_concurrent
            and 2 * self.running_of(tenant) < self._max_per_tenant
        )

    def gives_way(self, tenant: str) -> bool:
        """Return whether a tenant waits that holds fewer slots than this one."""
        first = self._first() if self._queues else None
        return first is not None and self.running_of(first) < self.running_of(tenant)

    def running_of(self, tenant: str) -> int:
        """Return the number of slots that this tenant holds."""
        return self._held.get(tenant, 0)

    def waiting_of(self, tenant: str) -> int:
        """Return the number of waiting callers of this tenant."""
        return len(self._queues.get(tenant, ()))

    def most_waiting(self) -> str | None:
        """Return the tenant with the most waiting callers, or None if no caller waits."""
        return max(self._queues, key=self.waiting_of, default=None)

    def reject_newest(self, tenant: str, error: Exception) -> None:
        """Remove the last caller in this tenant's queue: among the waiting callers with the highest
        ``priority`` value, the one that came last. Its call of ``acquire`` raises ``error``."""
        granted = self._take_turn(tenant, -1).granted
        if not granted.done():
            granted.set_exception(error)

    def _insert(self, queue: deque[_Turn], turn: _Turn) -> None:
        """Insert a caller behind all callers whose priority value is the same or lower. The search
        begins at the end, so it takes no time if all priorities are equal."""
        position = len(queue)
        while position and queue[position - 1].priority > turn.priority:
            position -= 1
        queue.insert(position, turn)

    def _next_tenant(self) -> str | None:
        """Return the tenant whose turn it is, if there are slots for it."""
        if not self._queues or self.running >= self._max_concurrent:
            return None
        if (first := self._first()) is None:
            return None
        amount = self._queues[first][0].amount
        return first if _fits(self.running, amount, self._max_concurrent) else None

    def _first(self) -> str | None:
        """Return the tenant whose turn it is, among those that may hold more."""
        candidates = (
            name
            for name, queue in self._queues.items()
            if _fits(self.running_of(name), queue[0].amount, self._max_per_tenant)
        )
        return min(
            candidates,
            key=lambda name: (self.running_of(name), self._last_grant.get(name, 0)),
            default=None,
        )

    def _take_turn(self, tenant: str, position: int) -> _Turn:
        """Remove the turn at ``position`` from the queue of a tenant, and return the turn."""
        queue = self._queues[tenant]
        turn = queue[position]
        del queue[position]
        self.waiting -= 1
        if not queue:
            del self._queues[tenant]
        return turn

    def _leave_queue(self, tenant: str, turn: _Turn) -> None:
        queue = self._queues.get(tenant, deque())
        if turn in queue:
            self._take_turn(tenant, queue.index(turn))
            self._grant_waiting()  # it may have needed many slots, and held up others
            self._forget_idle(tenant)

    def _grant(self, tenant: str, amount: int) -> None:
        self.running += amount
        self._held[tenant] = self.running_of(tenant) + amount
        self._grants += 1
        self._last_grant[tenant] = self._grants

    def _forget_idle(self, tenant: str) -> None:
        if tenant not in self._queues and not self.running_of(tenant):
            self._held.pop(tenant, None)
            self._last_grant.pop(tenant, None)
