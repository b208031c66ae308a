"""The rate store, through which the processes of a store exchange request counts for rate limits.

Most requests do not wait for the rate store. Each process admits requests by its local counts, and
exchanges these counts with the rate store a few times a second. A request waits only if the local
counts are too old (see ``antiphon/resources/admin/rate_limits.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from .values import SERVER, Document, ValueStore

__all__ = ["REPORT_TIMEOUT_S", "RateReport", "RateState", "RateStore"]

#: Seconds without a report after which the running requests of a process no longer count.
REPORT_TIMEOUT_S = 5.0


class RateReport(Struct, frozen=True, kw_only=True):
    """The report of one process about one scope. A scope is a group of requests that share a limit,
    such as all requests of an API key.

    ``per_minute``: the scope's limit of requests per minute. If None, only the number of concurrent
    requests is limited. ``admitted_count``: the number of requests that this process has admitted
    since its last report. ``running``: the number of requests that this process runs now.
    """

    scope: str
    per_minute: int | None = None
    admitted_count: int = 0
    running: int = 0


class RateState(Struct, frozen=True):
    """The state of a scope (a group of requests that share a limit), as the store returns it to a
    process that has reported its requests. ``level``: the number of tokens in the scope's token
    bucket. It is negative if the processes have admitted more requests than there were tokens.
    ``remote_running_count``: the number of requests that other processes run now."""

    level: float = 0.0
    remote_running_count: int = 0


class _Scope(Struct):
    """The stored state of a scope. ``level``, ``at``: the number of tokens in the bucket, and the
    time when they were counted; None if the scope has no bucket yet. ``full``: the number of tokens
    in a full bucket. ``running``: the number of running requests of each owner, and the time of its
    report."""

    level: float | None = None
    at: float = 0.0
    full: float = 0.0
    running: dict[str, tuple[int, float]] = {}

    def exchange(self, owner: str, report: RateReport, now: float) -> RateState:
        """Add the report of the server process ``owner``. Return the new state of the scope."""
        return RateState(self._take(report, now), self._run(owner, report.running, now))

    def is_unused(self, now: float) -> bool:
        """Return whether the scope can be forgotten: no requests run, and its bucket, if it has
        one, has been full for a minute. A process may report its last requests late."""
        return not self.running and self._refilled(now) >= 2 * self.full

    def _take(self, report: RateReport, now: float) -> float:
        if report.per_minute is None:
            return 0.0
        self.full = float(report.per_minute)
        self.level, self.at = min(self.full, self._refilled(now) - report.admitted_count), now
        return self.level

    def _refilled(self, now: float) -> float:
        """Return the number of tokens at this time, which may be more than the bucket holds."""
        return self.full if self.level is None else self.level + (now - self.at) * self.full / 60

    def _run(self, owner: str, count: int, now: float) -> int:
        self.running[owner] = (count, now)
        self.drop_stale(now)
        return sum(running for name, (running, _) in self.running.items() if name != owner)

    def drop_stale(self, now: float) -> None:
        """Drop the counts of processes that run no requests or have not reported for long."""
        self.running = {
            name: (running, at)
            for name, (running, at) in self.running.items()
            if running and now - at <= REPORT_TIMEOUT_S
        }


class _Rates(Struct):
    """The stored value: the states of all scopes in use, by name."""

    scopes: dict[str, _Scope] = {}

    def exchange(
        self, owner: str, reports: Sequence[RateReport], now: float
    ) -> tuple[RateState, ...]:
        """Add the reports of a server process. Return the new states of their scopes."""
        states = tuple(
            self.scopes.setdefault(report.scope, _Scope()).exchange(owner, report, now)
            for report in reports
        )
        for scope in self.scopes.values():
            scope.drop_stale(now)
        self.scopes = {
            name: scope for name, scope in self.scopes.items() if not scope.is_unused(now)
        }
        return states


class RateStore:
    """The state of rate limits, in one value of the store.

    Each scope (a group of requests that share a limit) has a token bucket. Each admitted request
    takes one token. A full bucket holds as many tokens as requests are allowed in one minute. A new
    bucket is full, and a bucket that is not full is refilled at a constant rate.

    A process reports how many requests it has admitted since its previous report, and the store
    takes that many tokens from the bucket. After a crash of the store, a bucket may be full again.

    ``timer``: returns monotonic seconds. All processes of the store must have the same timer, so
    this class serves the processes of one machine. A store of several machines overrides
    ``exchange``.
    """

    def __init__(self, values: ValueStore, timer: Callable[[], float] = time.monotonic) -> None:
        self._rates = Document(values, SERVER, "rates", _Rates)
        self._timer = timer

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        """Report the request counts of scopes, at most one report per scope. Return the states of
        these scopes, in the order of the reports. ``owner``: the process that reports. Raises
        ``StoreError``."""
        if not reports:
            return ()
        return await self._rates.update(
            lambda rates: rates.exchange(owner, reports, self._timer()),
        )
