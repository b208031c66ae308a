"""The contract of a rate store, through which the processes of a store exchange request counts for
rate limits.

Most requests do not wait for the rate store. Each process admits requests by its local counts, and
exchanges these counts with the rate store a few times a second. A request waits only if the local
counts are too old (see ``antiphon/resources/admin/rate_limits.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

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


class RateStore(Protocol):
    """The contract of a rate store.

    Each scope (a group of requests that share a limit) has a token bucket. Each admitted request
    takes one token. A full bucket holds as many tokens as requests are allowed in one minute. A new
    bucket is full, and a bucket that is not full is refilled at a constant rate.

    A process reports how many requests it has admitted since its previous report, and the store
    takes that many tokens from the bucket. After a crash of the store, a bucket may be full again.
    """

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        """Report the request counts of scopes, at most one report per scope. Return the states of
        these scopes, in the order of the reports. ``owner``: the process that reports. Raises
        ``StoreError``."""
