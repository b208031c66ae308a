"""The sweep of the SQLite store: it deletes expired data in short writes, so other writes do not
wait long.

The sweep consists of steps. A step is repeated until nothing is left to do. Each repetition is a
write that changes few rows. A run can have many batches of events. So the write that deletes a run
only renames it (the query "mark_run_deleted"). Then the run can no longer be found. A later step of
the sweep deletes the batches of renamed runs, a few at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from antiphon.store.base import Retention
from antiphon.store.common.eviction import TenantTotals
from antiphon.store.sql.deletion_steps import ROWS, SweepStep, sweep_steps
from antiphon.store.sql.row_mapping import Columns

from .executor import SqliteExecutor, SqliteTransaction

#: Number of responses of one tenant that one query reads.
_TENANT_ROWS = 50
#: The smallest ``ended_at`` of renamed runs: minus the time when they were renamed.
_SINCE = -(2**63)
#: Seconds after which a write that deletes responses ends.
_SLICE_S = 0.02


class SqliteSweep:
    """Deletes the expired data of an SQLite store once. ``retention``: the limits on the data that
    is kept. ``now``: the time of the sweep, in Unix seconds."""

    def __init__(self, executor: SqliteExecutor, retention: Retention, now: int) -> None:
        self._executor = executor
        self._retention = retention
        self._now = now

    async def run(self) -> int:
        """Delete all expired data. Return how many responses have expired."""
        for step in sweep_steps(self._retention, self._now):
            await self._repeat_query(step)
        expired = await self._executor.delete_in_steps(self._expire_by_time, ROWS)
        expired += await self._executor.delete_in_steps(self._expire_by_age, ROWS)
        if self._retention.bounds_size:
            expired += await self._expire_by_size()
        while await self._drop_deleted():
            pass
        return expired

    async def _repeat_query(self, step: SweepStep) -> int:
        """Repeat a step until it changes no row. Return how many rows were changed."""
        name = step.query

        def delete(limit: int, transaction: SqliteTransaction) -> int:
            arguments = (*step.arguments, limit)
            changed = transaction.execute(name, *arguments)
            if name.startswith("roll_up_"):  # added up, so they can be deleted
                changed = transaction.execute(name.replace("roll_up", "drop"), *arguments)
            return changed.rowcount

        return await self._executor.delete_in_steps(delete, step.rows)

    async def _drop_deleted(self) -> bool:
        """Finish the deletion of some renamed runs. (A run is renamed when it is deleted, so that
        it can no longer be found.) Delete their batches of events, and then those renamed runs that
        have no batches left. Return whether anything was deleted."""
        batches = await self._repeat_query(SweepStep("drop_deleted_batches", (_SINCE,)))
        runs = await self._repeat_query(SweepStep("drop_deleted_runs", (_SINCE,)))
        return bool(batches or runs)

    def _expire_by_time(self, limit: int, transaction: SqliteTransaction) -> int:
        found = transaction.execute("expired_responses", self._now, limit).fetchall()
        return _delete_live([seq for (seq,) in found], {}, limit, transaction)

    def _expire_by_age(self, limit: int, transaction: SqliteTransaction) -> int:
        if self._retention.max_age_s is None:
            return 0
        before = self._now - self._retention.max_age_s
        found = transaction.execute("outdated", before, limit).fetchall()
        return _delete_live([seq for (seq,) in found], {}, limit, transaction)

    async def _expire_by_size(self) -> int:
        """Delete responses until the store is within its size limits: always the oldest response of
        the tenant with the most data. Return how many responses were deleted."""
        rows = await self._executor.rows("tenant_totals")
        totals, expired = TenantTotals(self._retention, rows), 0
        while (tenant := totals.largest()) is not None:
            oldest = await self._executor.rows("oldest_of", tenant, _TENANT_ROWS)
            if not oldest:
                totals.exclude(tenant)
                continue
            selected, freed = totals.select(tenant, oldest), dict[int, int]()
            work = partial(_delete_live, selected, freed)
            expired += await self._executor.delete_in_steps(work, _TENANT_ROWS)
            totals.remove_responses(tenant, len(selected), sum(freed.values()))
        return expired


def _delete_live(
    seqs: Iterable[int], freed: dict[int, int], limit: int, transaction: SqliteTransaction
) -> int:
    """Delete at most ``limit`` of these responses, without those that are already deleted. Stop
    after ``_SLICE_S`` seconds, so that other writes do not wait long. Return how many responses
    were deleted. ``freed``: gets the bytes that each of them made free. (If the transaction fails,
    this is called again.)"""
    end, deleted = time.monotonic() + _SLICE_S, 0
    for seq in seqs:
        if deleted == limit or (deleted and time.monotonic() > end):
            break
        if transaction.execute("mark_deleted", seq).rowcount:
            transaction.execute("mark_run_of_deleted", seq)
            freed[seq] = free_unneeded(transaction, (seq,))
            deleted += 1
    return deleted


def free_unneeded(transaction: SqliteTransaction, row: Columns | None) -> int:
    """Delete the row of a response that is marked as deleted, if the response has no descendants.
    Then do the same for its parent, if the parent is marked as deleted too, and so on. Return how
    many bytes became free. ``row``: the row number of the response."""
    freed = 0
    while row and (unneeded := transaction.execute("unneeded_response", *row).fetchone()):
        transaction.execute("drop_response", *row)
        size, *parent = unneeded
        freed += int(size)
        row = transaction.execute("stored_row", *parent).fetchone()
    return freed
