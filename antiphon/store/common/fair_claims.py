"""The order in which a store claims queued runs of several tenants."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import TypeVar

__all__ = ["choose_fairly"]

_T = TypeVar("_T")


def choose_fairly(
    queued: Mapping[str, Iterable[tuple[int, _T]]],
    running: Mapping[str, int],
    *,
    limit: int,
    room: Mapping[str, int] | None = None,
) -> list[_T]:
    """Choose up to ``limit`` runs, each time of the tenant with the fewest running ones.

    ``queued``: the runs of each tenant with their rank in the queue, oldest first; no more are read
    than necessary. Among tenants with equally many running, the oldest run is chosen. ``room``:
    how many runs of a tenant may be chosen; None: any number.
    """
    sources = {tenant: iter(runs) for tenant, runs in queued.items()}
    #: Running ones, rank of the next run, tenant, the run; the first is the next.
    heads: list[tuple[int, int, str, _T]] = []
    chosen: list[_T] = []
    left = {tenant: limit if room is None else room[tenant] for tenant in sources}

    def add_head(tenant: str, count: int) -> None:
        head = next(sources[tenant], None) if left[tenant] > 0 else None
        if head is not None:
            heapq.heappush(heads, (count, head[0], tenant, head[1]))

    for tenant in sources:
        add_head(tenant, running.get(tenant, 0))
    while heads and len(chosen) < limit:
        count, _, tenant, run = heapq.heappop(heads)
        chosen.append(run)
        left[tenant] -= 1
        add_head(tenant, count + 1)
    return chosen
