"""Which runs an owner may claim, and in which order a store claims the queued runs of several
tenants."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

_T = TypeVar("_T")
#: The place of a run in the queue of its tenant: its ``start_by``, and a number that grows with
#: each new run.
Rank = tuple[int, int]


def choose_fairly(
    queued: Mapping[str, Iterable[tuple[Rank, _T]]],
    running: Mapping[str, int],
    *,
    limit: int,
    room: Mapping[str, int] | None = None,
) -> list[_T]:
    """Choose up to ``limit`` queued runs, one after another. Each time, choose the first queued run
    of the tenant with the fewest running runs. A run that was chosen counts as running. If several
    tenants have the same number of running runs, choose the first of their queued runs.

    A run with ``start_by`` is only chosen if there are no runs without it.

    ``queued``: the runs of each tenant in the order of their ranks, as pairs ``(rank, run)``. The
    function reads only as many pairs as it needs. ``running``: the number of running runs of each
    tenant. ``room``: the maximum number of runs to choose of each tenant. None means no limit.
    """
    sources = {tenant: iter(runs) for tenant, runs in queued.items()}
    #: Heap of the next run of each tenant: whether it has ``start_by``, number of running runs,
    #: rank, tenant, run.
    heads: list[tuple[bool, int, Rank, str, _T]] = []
    chosen: list[_T] = []
    left = {tenant: limit if room is None else room[tenant] for tenant in sources}

    def add_head(tenant: str, count: int) -> None:
        head = next(sources[tenant], None) if left[tenant] > 0 else None
        if head is not None:
            heapq.heappush(heads, (head[0][0] > 0, count, head[0], tenant, head[1]))

    for tenant in sources:
        add_head(tenant, running.get(tenant, 0))
    while heads and len(chosen) < limit:
        _, count, _, tenant, run = heapq.heappop(heads)
        chosen.append(run)
        left[tenant] -= 1
        add_head(tenant, count + 1)
    return chosen


def free_runs(
    owner: str, living_owners: Collection[str], held: Collection[str] | None
) -> Callable[[str, str | None], bool]:
    """Return a function that tells whether ``owner`` may claim a run. The arguments of the function
    are the id and the current owner of the run.

    ``owner`` may claim a run that has no living owner. It may also claim a run of its own that is
    not in ``held``. ``held``: as in ``RunStore.claim``.
    """
    alive = {owner, *living_owners}

    def is_free(response_id: str, run_owner: str | None) -> bool:
        is_forgotten = run_owner == owner and held is not None and response_id not in held
        return is_forgotten or run_owner not in alive

    return is_free
