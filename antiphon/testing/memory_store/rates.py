"""The in-memory rate store, the reference implementation of the contract ``RateStore``. It is used
for stores that only one process opens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from antiphon.store.rates import REPORT_TIMEOUT_S, RateReport, RateState

__all__ = ["MemoryRates"]

#: Largest number of scopes whose state is kept.
_MAX_SCOPES = 100_000


class MemoryRates:
    """Implements ``RateStore`` with dictionaries. ``check``: a function that the methods call
    first. It raises ``StoreError`` if the store is closed. ``timer``: returns monotonic seconds."""

    def __init__(
        self, check: Callable[[], None], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._timer = timer
        #: Tokens in the bucket of each scope, and the time when they were counted.
        self._levels: dict[str, tuple[float, float]] = {}
        #: Running requests by scope and owner, and the time when they were reported.
        self._running: dict[str, dict[str, tuple[int, float]]] = {}

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        self._check()
        now = self._timer()
        return tuple(
            RateState(self._take(report, now), self._run(owner, report, now)) for report in reports
        )

    def _take(self, report: RateReport, now: float) -> float:
        if report.per_minute is None:
            return 0.0
        if len(self._levels) >= _MAX_SCOPES:
            self._levels.clear()
        full = float(report.per_minute)
        level, at = self._levels.get(report.scope, (full, now))  # a new bucket is full
        level = min(full, level - report.admitted_count + (now - at) * full / 60)
        self._levels[report.scope] = (level, now)
        return level

    def _run(self, owner: str, report: RateReport, now: float) -> int:
        owners = self._running.setdefault(report.scope, {})
        owners[owner] = (report.running, now)
        for name, (running, at) in list(owners.items()):
            if not running or now - at > REPORT_TIMEOUT_S:
                del owners[name]
        if not owners:
            del self._running[report.scope]
        return sum(running for name, (running, _) in owners.items() if name != owner)
