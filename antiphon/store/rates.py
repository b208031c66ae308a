"""The contract of a rate store: how the processes of a store exchange the request counts of clients
with rate limits.

No request waits for the rate store. Each process admits requests by its local counts, and exchanges
these counts a few times a second (see ``antiphon/resources/admin/rate_limits.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["REPORT_TIMEOUT_S", "RateReport", "RateState", "RateStore"]

#: Seconds without a report after which the running requests of a process no longer count.
REPORT_TIMEOUT_S = 5.0


class RateReport(Struct, frozen=True, kw_only=True):
    """The report of a process about a scope. A scope is the group of requests that share a limit,
    such as the requests of a key.

    ``per_minute``: the scope's limit of requests per minute. If None, only the number of running
    requests is limited. ``admitted_count``: requests that this process has admitted since its last
    report.
    ``running``: requests that this process runs now.
    """

    scope: str
    per_minute: int | None = None
    admitted_count: int = 0
    running: int = 0


class RateState(Struct, frozen=True):
    """The state of a scope after a report. ``level``: the number of tokens in its bucket. It is
    negative if the processes have admitted more requests than there were tokens.
    ``remote_running_count``: requests that other processes run."""

    level: float = 0.0
    remote_running_count: int = 0


class RateStore(Protocol):
    """The contract of a rate store.

    Each scope has a token bucket. A full bucket holds the requests of one minute, and a bucket
    fills at a constant rate. The requests in a report count from the time of the previous report. A
    new bucket is full. After a crash of the store, a bucket may be full again.
    """

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        """Report the request counts of scopes, at most one report per scope. Return the states of
        these scopes, in the order of the reports. ``owner``: the process that reports. Raises
        ``StoreError``."""
