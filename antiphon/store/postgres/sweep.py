"""The sweep of the PostgreSQL store: it deletes expired data in short transactions.

The sweep consists of steps. A step is repeated until nothing is left to do. Each repetition is a
transaction that changes few rows and holds its locks for a fraction of a second, so clients do not
wait long.

A run that has expired is deleted in two steps. The first step renames the run, so it can no longer
be found, and records the time. A later step deletes the events of the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from antiphon.store.base import Retention
from antiphon.store.common.eviction import TenantTotals
from antiphon.store.sql.deletion_steps import ROWS, SMALL_ROWS, sweep_steps

from .partitions import EventPartitions
from .pool import ConnectionPool, Transaction

#: Largest number of responses that one transaction deletes. Other deletions wait for its lock.
_RESPONSES = 100
#: Seconds that the batches of an expired run wait for their partition to be dropped. Batches of
#: deleted responses do not wait.
_PARTITION_WAIT_S = 3600
#: A position before the first response: a time of creation and a row.
_FIRST = (-(2**63), 0)

#: A part of a sweep in one transaction. Returns how many rows it changed; 0 ends the step.
_Step = Callable[[Transaction], Awaitable[int]]


class PostgresSweep:
    """Deletes the expired data of a PostgreSQL store once. ``retention``: the limits on the data
    that is kept. ``now``: the time of the sweep, in Unix seconds."""

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
        #: Time of creation and row of the last response that was too old.
        self._oldest = _FIRST
        #: The totals of all tenants. They are read only once.
        self._totals = TenantTotals(retention, ())

    async def run(self) -> int:
        """Delete all expired data. Return how many responses have expired. Return 0 if another
        process is already sweeping."""
        await self._partitions.create_ahead()
        for step in self._first_steps():
            if await self._repeat(step) is None:
                return 0
        expired = await self._repeat(self._expire_by_time, frees=True)
        if expired is None:
            return 0
        expired += await self._repeat(self._expire_by_age, frees=True) or 0
        if self._retention.bounds_size:  # outside the transactions that delete
            totals = await self._pool.rows("tenant_totals")
            self._totals = TenantTotals(self._retention, totals)
            expired += await self._repeat(self._expire_by_size, frees=True) or 0
        await self._partitions.drop_expired()
        while await self._drop_deleted():
            pass
        return expired

    def _first_steps(self) -> Sequence[_Step]:
        return (
            _query("forget_owners"),
            _query("forget_reservations"),
            _query("forget_rates"),
            _add_response_changes,
            _query("drop_empty_sums"),
            *(
                _query(step.query, *step.arguments, step.rows)
                for step in sweep_steps(self._retention, self._now)
            ),
        )

    async def _drop_deleted(self) -> bool:
        """Finish the deletion of some renamed runs. (A run is renamed when it expires or is
        deleted, so that it can no longer be found.) Delete their events, and then those renamed
        runs that have no events left. Return whether anything was deleted. Runs that expired less
        than an hour ago are left out, because their partition may soon be dropped as a whole."""
        since = min(_PARTITION_WAIT_S - self._now, -1)
        batches = await self._repeat(_query("drop_deleted_batches", since, ROWS))
        runs = await self._repeat(_query("drop_deleted_runs", since, ROWS))
        return bool(batches or runs)

    async def _repeat(self, step: _Step, *, frees: bool = False) -> int | None:
        """Repeat a step of the sweep, each time in a transaction of its own, until it changes no
        row. Return how many rows were changed in all. Returns None if another process is sweeping.
        ``frees``: whether the step deletes responses, and also their ancestors that no response
        continues any more. If so, each transaction of the step takes the lock for deletions, so
        that only one transaction at a time deletes responses."""
        total = 0
        while True:
            async with self._pool.transaction() as transaction:
                if not await transaction.value("try_lock_sweep"):
                    return None
                if frees:
                    await transaction.rows("lock_deletions")
                count = await step(transaction)
            total += count
            if not count:
                return total

    # --- responses -------------------------------------------------------------------------------

    async def _expire_by_time(self, transaction: Transaction) -> int:
        rows = [
            row for (row,) in await transaction.rows("expired_responses", self._now, _RESPONSES)
        ]
        await delete_responses(transaction, rows)
        return len(rows)

    async def _expire_by_age(self, transaction: Transaction) -> int:
        rows: list[int] = []
        for row, created_at in await transaction.rows("oldest", _RESPONSES, *self._oldest):
            if not self._retention.is_too_old(self._now - created_at):
                break
            rows.append(row)
            self._oldest = created_at, row
        await delete_responses(transaction, rows)
        return len(rows)

    async def _expire_by_size(self, transaction: Transaction) -> int:
        """Delete some of the oldest responses of the tenant with the most data, if a limit is
        exceeded. Return how many responses were deleted."""
        while (tenant := self._totals.largest()) is not None:
            if oldest := await transaction.rows("oldest_of", tenant, _RESPONSES):
                rows = self._totals.select(tenant, oldest)
                freed = await delete_responses(transaction, rows)
                self._totals.remove_responses(tenant, len(rows), freed)
                return len(rows)
            self._totals.exclude(tenant)
        return 0


async def delete_responses(transaction: Transaction, rows: Sequence[int]) -> int:
    """Delete responses and their runs. Return how many bytes became free. ``rows``: the row numbers
    of the responses.

    The row of a deleted response is kept for as long as a later response continues it. When this
    function removes the row of the last response that continues it, it also removes the kept row.
    """
    freed = 0
    while rows:
        await transaction.rows("drop_runs_of", rows)  # first: the lock order of PostgresRuns.end
        gone = await transaction.rows("expire", rows)
        freed += sum(size for _, _, _, size in gone)
        parents = {(tenant, parent) for tenant, _, parent, _ in gone if parent is not None}
        parents -= {(tenant, id) for tenant, id, _, _ in gone}
        if not parents:
            break
        tenants, ids = zip(*sorted(parents), strict=True)
        rows = [row for (row,) in await transaction.rows("unneeded_parents", tenants, ids)]
    return freed


async def _add_response_changes(transaction: Transaction) -> int:
    """Add recorded changes of responses to the totals of the tenants. One call adds at most
    ``SMALL_ROWS`` changes.

    If a call adds ``SMALL_ROWS`` changes, it returns this number, so the step of the sweep is
    repeated. If it adds fewer, it returns 0, which ends the step: hardly any changes are left, and
    the next sweep adds them. Without this rule, the step might not end while clients record further
    changes.
    """
    count = await transaction.change("add_response_changes", SMALL_ROWS)
    return count if count == SMALL_ROWS else 0


def _query(name: str, *arguments: object) -> _Step:
    """Return a step that runs the query ``name``."""
    return lambda transaction: transaction.change(name, *arguments)
