"""The contract of a rate store: what the processes of a store tell each other about the requests of
limited clients.

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
    """What a process reports about a scope, such as a key. ``per_minute``: its limit of requests;
    None: only running requests count. ``taken``: requests that this process has admitted since its
    last report. ``running``: those that it runs now."""

    scope: str
    per_minute: int | None = None
    taken: int = 0
    running: int = 0


class RateState(Struct, frozen=True):
    """What is known of a scope after a report. ``level``: the tokens in its bucket, negative if
    processes have admitted more than there were. ``running_elsewhere``: requests that other
    processes run."""

    level: float = 0.0
    running_elsewhere: int = 0


class RateStore(Protocol):
    """The contract. A bucket holds the requests of one minute and fills evenly: what a report has
    taken counts from the report before. It starts full, and may be full again after a crash of the
    store."""

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        """Report about scopes, each at most once, and return their states, in the same order.
        ``owner``: the process. Raises ``StoreError``."""
