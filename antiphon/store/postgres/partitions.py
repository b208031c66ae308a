"""The partitions of the table of events. A partition is a part of the table that PostgreSQL can
drop as a whole. Each partition holds the events of a series of runs that were created one after
another.

When all runs of a partition have ended and expired, the partition is dropped. This takes
milliseconds and leaves nothing to vacuum. A run that lasts long delays the drop of its partition.
Meanwhile, the expired events of the other runs in this partition are deleted row by row (see
sweep.py).
"""

from __future__ import annotations

import structlog

from antiphon.errors import StoreError

from .pool import ConnectionPool
from .table_names import SCHEMA

_log = structlog.get_logger(__name__)

#: Number of runs in the smallest partitions. Partitions are created ahead for this number times
#: ``_AHEAD`` runs.
_RUNS, _AHEAD = 16_384, 8
#: New partitions double in size after each group of this many partitions, because each partition
#: costs every query some time.
_DOUBLED_AFTER = 16
#: Largest number of runs that one transaction deletes.
_ROWS = 500


class EventPartitions:
    """Creates and drops the partitions of one database. Only one process at a time changes
    partitions. If a change would have to wait for other transactions that use the table, the change
    is given up. The next sweep tries again."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def create_ahead(self) -> None:
        """Create the partitions that the next runs will need."""
        while (runs := await self._next_runs()) is not None:
            bounds = f"FROM ({runs.start}) TO ({runs.stop})"
            if not await self._change(
                f"CREATE TABLE batches_{runs.start} PARTITION OF batches FOR VALUES {bounds}"
            ):
                return

    async def drop_expired(self) -> None:
        """Drop each partition whose runs have all been deleted or have expired. Also delete the
        rows that these runs still have in the table of runs."""
        for name, low, high in await self._pool.rows("expired_partitions"):
            if not await self._change(f"DROP TABLE {name}"):
                return
            while await self._pool.rows("drop_runs_between", low, high, _ROWS):
                pass

    async def _next_runs(self) -> range | None:
        """Return the row numbers of the runs that the next partition must hold. Returns None if
        there are enough partitions."""
        ((count, created_to, rest_to, last_run),) = await self._pool.rows("partition_state")
        # Rows in the default partition stay there, so the next partition begins after their runs.
        start = max(created_to, -(-(rest_to + 1) // _RUNS) * _RUNS)
        if start >= last_run + _AHEAD * _RUNS:
            return None
        return range(start, start + (_RUNS << count // _DOUBLED_AFTER))

    async def _change(self, statement: str) -> bool:
        """Execute a statement that changes the partitions. Returns False if another process is
        changing partitions. Also returns False if the statement must wait for more than 50
        milliseconds for other transactions that use the table. This time limit is short because a
        statement that waits blocks all later statements on the table."""
        try:
            async with self._pool.transaction() as transaction:
                if not await transaction.value("try_lock_sweep"):
                    return False
                await transaction.execute("SET LOCAL lock_timeout = '50ms'")
                await transaction.execute(f"SET LOCAL search_path TO {SCHEMA}")
                await transaction.execute(statement)
        except StoreError as error:
            _log.info("partitions cannot be changed at present", error=str(error.__cause__))
            return False
        return True
