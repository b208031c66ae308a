"""The contract of a rate store: how processes of a store exchange the request counts of limited
clients.

No request waits for it. Each process admits requests by its own view, and exchanges it a few times
a second (see ``antiphon/resources/admin/rate_limits.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

__all__ = ["HEARD_S", "RateReport", "RateState", "RateStore"]

#: Seconds without a report after which the running requests of a process no longer count.
HEARD_S = 5.0


class RateReport(Struct, frozen=True, kw_only=True):
    """The report of a process about a scope, such as a key. ``per_minute``: the scope's limit of
    requests per minute; None: only running requests are limited. ``taken``: requests that this
    process has admitted since its last report. ``running``: requests that this process runs now."""

    scope: str
    per_minute: int | None = None
    taken: int = 0
    running: int = 0


class RateState(Struct, frozen=True):
    """The state of a scope after a report. ``level``: the tokens in its bucket; negative if
    processes have admitted more than there were. ``running_elsewhere``: requests that other
    processes run."""

    level: float = 0.0
    running_elsewhere: int = 0


class RateStore(Protocol):
    """The contract of a rate store.

    A bucket holds the requests of one minute and fills at a constant rate. The requests in a report
    count from the time of the previous report. A bucket starts full, and may be full again after a
    crash of the store.
    """

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        """Report about scopes, each at most once, and return their states, in the same order.
        ``owner``: the process. Raises ``StoreError``."""
