"""The partitions of the event table, by the number of the run, which is the order of creation.

A partition is dropped as a whole when every run in it has ended and expired: that takes
milliseconds and leaves nothing to clean up. A run that lives long keeps its partition; the batches
of the other runs in it are then deleted row by row (see sweep.py).
"""

from __future__ import annotations

import structlog

from antiphon.errors import StoreError

from .pool import ConnectionPool
from .qualified import SCHEMA

__all__ = ["EventPartitions"]

_log = structlog.get_logger(__name__)

#: Runs in a small partition, and for how many times as many runs partitions are created ahead.
_RUNS, _AHEAD = 16_384, 8
#: Whenever so many more exist, new ones are twice as large: each one costs every query some time.
_DOUBLED_AFTER = 16
#: Runs that one transaction deletes.
_ROWS = 500


class EventPartitions:
    """The partitions of one database. One process changes them at a time. A change that would have
    to wait for other users of the table is left for the next sweep."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def create_ahead(self) -> None:
        """Create the partitions of the next runs."""
        while (runs := await self._next_runs()) is not None:
            bounds = f"FROM ({runs.start}) TO ({runs.stop})"
            if not await self._change(
                f"CREATE TABLE batches_{runs.start} PARTITION OF event_batches FOR VALUES {bounds}"
            ):
                return

    async def drop_expired(self) -> None:
        """Drop the partitions in which every run was deleted, and these runs."""
        for name, low, high in await self._pool.rows("expired_partitions"):
            if not await self._change(f"DROP TABLE {name}"):
                return
            while await self._pool.rows("drop_runs_between", low, high, _ROWS):
                pass

    async def _next_runs(self) -> range | None:
        """Return the runs of the next partition; None if there are enough."""
        ((count, created_to, rest_to, last_run),) = await self._pool.rows("partition_state")
        # What is in the default partition stays there.
        start = max(created_to, -(-(rest_to + 1) // _RUNS) * _RUNS)
        if start >= last_run + _AHEAD * _RUNS:
            return None
        return range(start, start + (_RUNS << count // _DOUBLED_AFTER))

    async def _change(self, statement: str) -> bool:
        """Execute a statement that changes the partitions. Return False if another process changes
        them, or if others use the table for too long. The statement does not wait longer, because
        later statements would have to wait behind it."""
        try:
            async with self._pool.transaction() as transaction:
                if not await transaction.value("sweeping"):
                    return False
                await transaction.execute("SET LOCAL lock_timeout = '50ms'")
                await transaction.execute(f"SET LOCAL search_path TO {SCHEMA}")
                await transaction.execute(statement)
        except StoreError as error:
            _log.info("the partitions of events stay as they are", error=str(error.__cause__))
            return False
        return True
