"""Admission control: limit the number of requests in progress. Further requests wait in a queue
that is fair to all tenants.

Each admitted request holds a slot until it ends. Tenants share the slots and the places in the
queue. If a tenant floods the server, only this tenant's requests are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from antiphon.support.fair_limiter import FairLimiter, LimiterSlot

from .refusals import server_is_busy
from .requests import RequestLimits


class Admission(Protocol):
    """Limits how many requests are in progress at a time."""

    @property
    def running(self) -> int:
        """The number of admitted requests."""

    @property
    def waiting(self) -> int:
        """The number of queued requests."""

    def running_of(self, tenant: str) -> int:
        """The number of admitted requests of this tenant."""

    def waiting_of(self, tenant: str) -> int:
        """The number of queued requests of this tenant."""

    def slot(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that waits for a slot and holds the slot until the block ends.
        The context manager raises ``Overloaded`` if the queue is full."""

    def update(self, limits: RequestLimits) -> None:
        """Apply new limits to later requests."""


class AdmissionQueue:
    """Admits at most ``max_concurrent_requests`` requests at a time. At most
    ``max_queued_requests`` more requests wait in the queue.

    If the queue is full, a new request can replace a queued request. This happens if another tenant
    has at least two more queued requests than the tenant of the new request. The replaced request
    is the newest queued request of the tenant with the most queued requests. It is rejected. In all
    other cases, the new request is rejected.

    - ``max_per_tenant``: the maximum number of concurrent requests of one tenant; None means no
      limit per tenant.
    - ``retry_after_s``: the seconds after which the client of a rejected request may try again.
    - ``clock`` returns seconds.
    - ``on_admitted`` is called for each admitted request, with the seconds that the request has
      waited.
    """

    def __init__(
        self,
        max_concurrent_requests: int,
        max_queued_requests: int,
        *,
        max_per_tenant: int | None = None,
        retry_after_s: int = 1,
        clock: Callable[[], float] = time.monotonic,
        on_admitted: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._limiter = FairLimiter(max_concurrent_requests, max_per_tenant=max_per_tenant)
        self._max_queued = max_queued_requests
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._on_admitted = on_admitted

    @property
    def running(self) -> int:
        """The number of admitted requests."""
        return self._limiter.running

    @property
    def waiting(self) -> int:
        """The number of queued requests."""
        return self._limiter.waiting

    def running_of(self, tenant: str) -> int:
        """The number of admitted requests of this tenant."""
        return self._limiter.running_of(tenant)

    def waiting_of(self, tenant: str) -> int:
        """The number of queued requests of this tenant."""
        return self._limiter.waiting_of(tenant)

    def slot(self, tenant: str) -> LimiterSlot:
        """Return a context manager that waits for a slot and holds the slot until the block ends.
        The context manager raises ``Overloaded`` if the queue is full."""
        return LimiterSlot(self, tenant)

    def update(self, limits: RequestLimits) -> None:
        """Apply new limits. Requests in progress and requests in the queue are kept."""
        self._max_queued = limits.max_queued_requests
        self._limiter.set_limits(
            limits.max_concurrent_requests, max_per_tenant=limits.max_requests_per_tenant
        )

    def try_acquire(self, tenant: str) -> bool:
        """Take a slot if a slot is free. Returns whether a slot was taken."""
        is_free = self._limiter.try_acquire(tenant)
        if is_free:
            self._on_admitted(0.0)
        return is_free

    def is_half_free(self, tenant: str) -> bool:
        """Return whether two conditions hold: more than half of all slots are free, and this tenant
        holds less than half of the slots that it may hold."""
        return self._limiter.is_half_free(tenant)

    async def acquire(self, tenant: str, *, priority: int = 0) -> None:
        """Wait for a slot. ``priority``: among the queued requests of one tenant, the request with
        the lowest value is admitted first. Raises ``Overloaded`` if the queue is full."""
        if self.try_acquire(tenant):
            return
        if self._limiter.waiting >= self._max_queued:
            self._make_room(tenant)
        arrived = self._clock()
        await self._limiter.acquire(tenant, priority=priority)
        self._on_admitted(self._clock() - arrived)

    def release(self, tenant: str) -> None:
        """Free a slot that this tenant holds."""
        self._limiter.release(tenant)

    def _make_room(self, tenant: str) -> None:
        """Make room in the full queue for a request of ``tenant``: reject the newest queued request
        of the tenant with the most queued requests.

        If no tenant has at least two more queued requests than ``tenant``, raise ``Overloaded``
        instead. In this case, no queued request is rejected.
        """
        limiter = self._limiter
        error = server_is_busy("too many requests are waiting", retry_after_s=self._retry_after_s)
        largest = limiter.most_waiting()
        if largest is None or limiter.waiting_of(largest) <= limiter.waiting_of(tenant) + 1:
            raise error
        limiter.reject_newest(largest, error)


def admission_queue(
    limits: RequestLimits,
    clock: Callable[[], float] = time.monotonic,
    on_admitted: Callable[[float], None] = lambda seconds: None,
) -> AdmissionQueue:
    """Create the admission queue for these limits."""
    return AdmissionQueue(
        limits.max_concurrent_requests,
        limits.max_queued_requests,
        max_per_tenant=limits.max_requests_per_tenant,
        retry_after_s=limits.retry_after_s,
        clock=clock,
        on_admitted=on_admitted,
    )
