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
    """Choose up to ``limit`` runs. Each next run is the oldest queued run of the tenant with the
    fewest running runs.

    ``queued``: the runs of each tenant, oldest first, as pairs ``(rank, run)``. The rank is the
    position in the queue. The function reads only as many of them as it needs. ``running``: the
    number of running runs of each tenant. Among tenants with equal numbers, the oldest run is
    chosen. ``room``: the maximum number of runs of each tenant to choose. None means no limit.
    """
    sources = {tenant: iter(runs) for tenant, runs in queued.items()}
    #: Heap of the next run of each tenant: number of running runs, rank, tenant, run.
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
