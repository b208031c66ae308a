"""Limits on requests per minute and on concurrent requests. All servers on the same store share the
limits.

A scope is an API key or a tenant that has limits. Each scope has a token bucket in the store. Each
process keeps a local copy of the bucket and uses this copy to admit requests. A few times a second,
the process reports to the store how many requests it has admitted, and reads how many requests the
other processes have admitted. So most requests need no round trip to the store. A request waits for
the store only in two cases: the local copy is more than two seconds old, for example because the
scope had no request for some time, or the request would be refused because of concurrent requests
in other processes. Such requests may have ended since the last report, so the request waits for the
next reports of the other processes.

Between two reports, all processes together may admit more requests than the bucket holds. The level
of the bucket is then negative, and no request is admitted until the bucket has refilled. So the
limit is exact over several minutes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import structlog
from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.store.rates import RateReport, RateState, RateStore
from antiphon.support.tasks import BackgroundTasks

from .clients import LimitScope
from .refusals import limit_reached

_log = structlog.get_logger(__name__)

#: Seconds between two reports about a scope in use.
_EXCHANGE_S = 0.25
#: How often a request waits for the reports of other processes before it is refused because of
#: their concurrent requests.
_RECHECKS = 2
#: Age in seconds from which a local copy is too old: the process then reads the store before it
#: admits a request.
_STALE_S = 2.0
#: Longest wait for a report, in seconds. After this time, the process uses its local copy, even if
#: the copy is too old.
_TIMEOUT_S = 1.0
#: Largest number of scopes of which a process keeps a local copy.
_MAX_SCOPES = 10_000
#: ``retry-after``, in seconds, for a client with too many concurrent requests.
_RETRY_S = 1


class Permit(Struct, frozen=True):
    """The result of checking a request against the limit of one scope (an API key or a tenant),
    with the numbers for the rate limit headers.

    - ``limit``: maximum number of requests per minute.
    - ``remaining``: number of further requests that would be admitted now.
    - ``full_s``: seconds until the scope's token bucket is full.
    - ``wait_s``: 0 if the request was admitted. Otherwise, the seconds until the scope can admit a
      request.
    """

    limit: int
    remaining: int
    full_s: float
    wait_s: float


class _View:
    """This process's local copy of the state of a scope (an API key or a tenant).

    - ``level``: number of tokens in the scope's token bucket at the time ``counted_at``. Each
      admitted request takes one token.
    - ``read_at``: time of the last report to the store, or of the last attempt.
    - ``admitted_count``: number of requests that this process has admitted but not yet reported.
    - ``running``: number of requests that run in this process now.
    - ``reported``: value of ``running`` in the last report.
    - ``used_at``: time of the last request.
    """

    __slots__ = ("admitted_count", "counted_at", "level", "per_minute", "read_at", "reported",
                 "running", "state", "used_at")  # fmt: skip

    def __init__(self) -> None:
        self.per_minute: int | None = None
        self.level = 0.0
        self.counted_at = 0.0
        self.read_at = self.used_at = -math.inf
        self.admitted_count = self.running = self.reported = 0
        self.state = RateState()

    def is_in_use(self, now: float) -> bool:
        """Return whether the process must continue to report the requests of this scope to the
        store. This is necessary in any of these cases:

        - Requests of the scope run in this process, or did so at the last report.
        - Admitted requests of the scope are not reported yet.
        - The last request of the scope was at most ``_STALE_S`` seconds ago.
        """
        is_counted = self.admitted_count or self.running or self.reported
        return bool(is_counted) or now - self.used_at <= _STALE_S

    def fill(self, per_minute: int, now: float) -> None:
        """Refill the bucket: add the tokens for the time since ``counted_at``."""
        rate, elapsed = per_minute / 60, max(0.0, now - self.counted_at)
        is_new = self.per_minute is None
        self.level = per_minute if is_new else min(per_minute, self.level + elapsed * rate)
        self.per_minute = per_minute
        self.counted_at = now

    def is_stale(self, now: float) -> bool:
        """Return whether the copy is too old to admit a request."""
        return now - self.read_at > _STALE_S

    def update(self, report: RateReport, state: RateState, now: float) -> None:
        """Replace the local copy by ``state``, which the store returned for ``report``. ``state``
        does not count the requests that this process admitted after the report. So the number of
        these requests is subtracted from ``level``."""
        self.admitted_count -= report.admitted_count
        self.reported = report.running
        self.state = state
        self.level = state.level - self.admitted_count
        self.counted_at = self.read_at = now


class RateLimits:
    """Admits or refuses requests, depending on the limits of their scopes (API keys and tenants).
    Create one instance per process. ``owner``: name of this process in the store. ``timer`` returns
    monotonic seconds."""

    def __init__(self, rates: RateStore, *, owner: str, timer: Callable[[], float]) -> None:
        self._rates = rates
        self._owner = owner
        self._timer = timer
        self._views: dict[str, _View] = {}
        #: Scopes with requests that wait for the next report.
        self._wanted: set[str] = set()
        self._scheduled: asyncio.TimerHandle | None = None
        self._exchanges = BackgroundTasks("rate limits")

    async def take(self, scopes: Sequence[LimitScope]) -> tuple[Permit, ...]:
        """Admit or refuse one request that counts for all of these scopes. A request is admitted
        only if each scope admits it. An admitted request takes one token from the bucket of each
        scope. A refused request takes no tokens, not even from the scopes that would admit it.

        Returns one permit for each scope that limits requests per minute.
        """
        limited = [
            (scope.id, scope.limits.requests_per_minute)
            for scope in scopes
            if scope.limits.requests_per_minute is not None
        ]
        for name, per_minute in limited:
            view = self._view(name)
            view.used_at = self._timer()
            view.fill(per_minute, view.used_at)
            if view.is_stale(view.used_at):
                await self._refresh(name)
        now = self._timer()
        views = [self._view(name) for name, _ in limited]
        for view, (_, per_minute) in zip(views, limited, strict=True):
            view.fill(per_minute, now)
        is_admitted = all(view.level >= 1 for view in views)
        if is_admitted and views:
            for view in views:
                view.level -= 1
                view.admitted_count += 1
            self._schedule()
        return tuple(_permit(view, is_admitted=is_admitted) for view in views)

    @asynccontextmanager
    async def running(self, scopes: Sequence[LimitScope]) -> AsyncGenerator[None, None]:
        """Count a request as running for the duration of the block. Raises ``Overloaded`` if a
        scope already has its maximum number of running requests."""
        limited = [
            (scope, scope.limits.concurrent_requests)
            for scope in scopes
            if scope.limits.concurrent_requests is not None
        ]
        for scope, limit in limited:
            await self._read_running(scope.id, limit)
            self._check_running(scope, limit)
        # Nothing is awaited from here on, so no other request takes the place.
        for scope, limit in limited:
            self._check_running(scope, limit)
        views = [self._view(scope.id) for scope, _ in limited]
        for view in views:
            view.running += 1
        try:
            if views:
                self._schedule()
            yield
        finally:
            for view in views:
                view.running -= 1

    async def close(self) -> None:
        """Stop the reports to the store. The store forgets this process after a while."""
        if self._scheduled is not None:
            self._scheduled.cancel()
        await self._exchanges.close()

    def _check_running(self, scope: LimitScope, limit: int) -> None:
        """Raise ``Overloaded`` if the scope has no room for one more running request."""
        view = self._view(scope.id)
        if view.running + view.state.remote_running_count >= limit:
            raise limit_reached(
                f"{scope.owner} has {limit} requests in progress, as many as it may have"
                " (concurrent_requests)",
                retry_after_s=_RETRY_S,
            )

    async def _read_running(self, name: str, limit: int) -> None:
        """Read how many requests of the scope ``name`` run in other processes, if the local copy is
        too old. If the scope has no room for one more request only because of the other processes,
        wait for their next reports, because their requests may have ended since the last ones."""
        view = self._view(name)
        view.used_at = self._timer()
        if view.is_stale(view.used_at):
            await self._refresh(name)
        for _ in range(_RECHECKS):
            view = self._view(name)
            if view.running >= limit or view.running + view.state.remote_running_count < limit:
                return
            started = self._timer()
            await asyncio.sleep(_EXCHANGE_S)
            if self._view(name).read_at <= started:  # no other request has read the counts
                await self._refresh(name)

    # --- the exchange ----------------------------------------------------------------------------

    def _view(self, name: str) -> _View:
        view = self._views.get(name)
        if view is None:
            if len(self._views) >= _MAX_SCOPES:
                self._views = {id: self._views[id] for id in self._in_use()}
            view = self._views[name] = _View()
        return view

    def _in_use(self) -> set[str]:
        now = self._timer()
        return {name for name, view in self._views.items() if view.is_in_use(now)}

    async def _refresh(self, name: str) -> None:
        """Send the store a report about the scope ``name`` now, and wait for the store's answer,
        which contains the state of the scope. If the store does not answer in time, keep using the
        local copy of the scope's token bucket."""
        self._wanted.add(name)
        exchange = self._exchanges.start_once("exchange", self.exchange)
        await asyncio.wait((exchange,), timeout=_TIMEOUT_S)
        self._view(name).read_at = self._timer()

    def _schedule(self) -> None:
        if self._scheduled is None:
            loop = asyncio.get_running_loop()
            self._scheduled = loop.call_later(_EXCHANGE_S, self._on_time)

    def _on_time(self) -> None:
        self._scheduled = None
        self._exchanges.start_once("exchange", self.exchange)

    async def exchange(self) -> None:
        """For each scope in use, report to the store how many requests were admitted and how many
        are running. Read the new states of these scopes from the store's answer. If ``_refresh`` is
        called before the answer arrives, send new reports afterwards."""
        while names := self._wanted | self._in_use():
            self._wanted.clear()
            views = [self._view(name) for name in names]
            reports = [
                RateReport(
                    scope=name,
                    per_minute=view.per_minute,
                    admitted_count=view.admitted_count,
                    running=view.running,
                )
                for name, view in zip(names, views, strict=True)
            ]
            try:
                states = await self._rates.exchange(self._owner, reports)
            except StoreError as error:
                _log.warning(
                    "rate limits are not shared, because the store does not answer",
                    error=error.message,
                )
                self._wanted.clear()
                for view in views:  # the old counts of other processes would count forever
                    view.state = RateState()
            else:
                now = self._timer()
                for view, report, state in zip(views, reports, states, strict=True):
                    view.update(report, state, now)
            if not self._wanted:
                break
        if self._in_use():
            self._schedule()


def _permit(view: _View, *, is_admitted: bool) -> Permit:
    limit = view.per_minute or 1
    rate = limit / 60
    lacking = 0.0 if is_admitted else max(0.0, 1 - view.level)
    return Permit(limit, max(0, int(view.level)), (limit - view.level) / rate, lacking / rate)
