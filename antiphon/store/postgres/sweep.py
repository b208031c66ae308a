"""The sweep of the PostgreSQL store, in short transactions.

A transaction changes few rows and holds its locks for a fraction of a second, so that clients do
not wait for it. The order of the steps matters: runs are renamed and dated before their batches
are deleted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from antiphon.store.base import Retention
from antiphon.store.eviction import TenantTotals
from antiphon.store.usage import usage_cutoffs

from .partitions import EventPartitions
from .pool import ConnectionPool, Transaction

__all__ = ["PostgresSweep", "delete_response"]

#: Rows that one transaction changes at most, and files, which are larger.
_ROWS, _FILES = 500, 10
#: Small rows of the usage log that one transaction sums up.
_USAGE_ROWS = 5000
#: Rows of one tenant that are looked up at a time.
_TENANT_ROWS = 50
#: Seconds after which a transaction that deletes responses ends: others wait for its lock.
_SLICE_S = 0.02
#: Seconds that the batches of an expired run wait for their partition to be dropped. Batches of
#: deleted responses do not wait.
_PARTITION_WAIT_S = 3600

#: A part of a sweep in one transaction. Returns how many rows it changed; 0 ends the step.
_Step = Callable[[Transaction], Awaitable[int]]


class PostgresSweep:
    """One sweep at ``now``, in unix seconds."""

    def __init__(
        self,
        pool: ConnectionPool,
        retention: Retention,
        now: int,
    ) -> None:
        self._pool = pool
        self._partitions = EventPartitions(pool)
        self._retention = retention
        self._now = now
        #: What the tenants hold, read once: it takes a whole index.
        self._totals = TenantTotals(retention, ())

    async def run(self) -> int:
        """Delete everything that expired. Return how many responses did."""
        await self._partitions.create_ahead()
        for step in self._first_steps():
            if await self._repeat(step) is None:
                return 0
        expired = await self._repeat(self._expire_by_time, frees=True)
        if expired is None:
            return 0
        expired += await self._repeat(self._expire_by_age, frees=True) or 0
        if self._retention.bounds_size:  # outside the transactions that delete
            totals = map(tuple, await self._pool.rows("tenant_totals"))
            self._totals = TenantTotals(self._retention, totals)
            expired += await self._repeat(self._expire_by_size, frees=True) or 0
        await self._partitions.drop_expired()
        while await self._drop_buried():
            pass
        return expired

    def _first_steps(self) -> Sequence[_Step]:
        retention, now = self._retention, self._now
        steps = [
            _query("expire_files", now, _FILES),
            _query("expire_vector_files", now, _FILES),
            _query("forget_owners"),
            _query("forget_reservations"),
            _query("forget_rates"),
            _query("see_ended", max(now, 1), _ROWS),
        ]
        if retention.max_age_s is not None:
            steps.append(_query("expire_approvals", int(now - retention.max_age_s), _ROWS))
        if retention.max_log_age_s is not None:
            before = int(now - retention.max_log_age_s)
            steps.append(_query("bury_runs", before, _ROWS, max(now, 1)))
        for rollup, before in usage_cutoffs(now):
            if rollup.width == 0:
                steps.append(_query("roll_up_usage_rows", rollup.to, before, _USAGE_ROWS))
            else:
                row = (rollup.width, rollup.to, before, _USAGE_ROWS)
                steps.append(_query("roll_up_usage_sums", *row))
        if retention.max_audit_age_s is not None:
            steps.append(_query("expire_audit", int(now - retention.max_audit_age_s), _ROWS))
        if retention.max_usage_age_s is not None:
            steps.append(_query("expire_usage", int(now - retention.max_usage_age_s), _ROWS))
        return steps

    async def _drop_buried(self) -> bool:
        """Delete the batches of some deleted runs, then the runs that have none. Return whether
        there were any. Runs that expired wait for a while: their partition may be dropped."""
        since = min(_PARTITION_WAIT_S - self._now, -1)
        batches = await self._repeat(_query("drop_buried_batches", _ROWS, since))
        runs = await self._repeat(_query("drop_buried_runs", _ROWS, since))
        return bool(batches or runs)

    async def _repeat(self, step: _Step, *, frees: bool = False) -> int | None:
        """Repeat a step, each time in a transaction, until nothing is left for it. Return how many
        rows it changed; None if another process sweeps. ``frees``: the step may free the ancestors
        of a response."""
        total = 0
        while True:
            async with self._pool.transaction() as transaction:
                if not await transaction.value("sweeping"):
                    return None
                if frees:
                    await transaction.rows("freeing")
                count = await step(transaction)
            total += count
            if not count:
                return total

    # --- responses -------------------------------------------------------------------------------

    async def _expire_by_time(self, transaction: Transaction) -> int:
        end = time.monotonic() + _SLICE_S
        deleted = 0
        for (row,) in await transaction.rows("lapsed", self._now, _ROWS):
            await delete_response(transaction, row)
            deleted += 1
            if time.monotonic() > end:
                break
        return deleted

    async def _expire_by_age(self, transaction: Transaction) -> int:
        end = time.monotonic() + _SLICE_S
        deleted = 0
        for row, created_at in await transaction.rows("oldest", _ROWS):
            if not self._retention.is_too_old(self._now - created_at):
                break
            await delete_response(transaction, row)
            deleted += 1
            if time.monotonic() > end:
                break
        return deleted

    async def _expire_by_size(self, transaction: Transaction) -> int:
        """Delete the oldest responses of the tenant that holds most, until the bounds hold."""
        end = time.monotonic() + _SLICE_S
        deleted = 0
        oldest: dict[str, deque[int]] = {}
        while (tenant := self._totals.largest()) is not None:
            if not oldest.get(tenant):
                rows = await transaction.rows("oldest_of", tenant, _TENANT_ROWS)
                oldest[tenant] = deque(row for (row,) in rows)
            if not oldest[tenant]:
                self._totals.exclude(tenant)
                continue
            freed = await delete_response(transaction, oldest[tenant].popleft())
            self._totals.remove_response(tenant, freed)
            deleted += 1
            if time.monotonic() > end:
                break
        return deleted


async def delete_response(transaction: Transaction, row: int) -> int:
    """Delete a response with its run, and free deleted ancestors that no descendant needs. Return
    the freed bytes.
    """
    await transaction.rows("drop_run_of", row)  # first: the lock order of ``PostgresRuns.end``
    return int(await transaction.value("expire", row))


def _query(name: str, *arguments: Any) -> _Step:
    """Return the step that runs one query, which returns the rows that it changes."""
    return lambda transaction: transaction.count(name, *arguments)
