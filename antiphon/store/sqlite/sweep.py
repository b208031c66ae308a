"""The sweep of the SQLite store, in short writes, so that other writes do not wait for it.

A deleted or expired run is first only renamed (``bury_run``), so that no write deletes many
batches. A sweep deletes the batches of such runs bit by bit.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.store.base import Retention

from .database import Database

__all__ = ["SqliteSweep", "free_unneeded"]

#: Rows that one write changes at most, and files, which are larger.
_ROWS, _FILES = 500, 10
#: Seconds after which a write that deletes responses ends.
_SLICE_S = 0.02

#: A part of a sweep in one write. Returns how many rows it changed; 0 ends the step.
_Step = Callable[[sqlite3.Connection], int]


class SqliteSweep:
    """One sweep at ``now``, in unix seconds."""

    def __init__(self, database: Database, retention: Retention, now: int) -> None:
        self._database = database
        self._queries = database.queries
        self._retention = retention
        self._now = now

    async def run(self) -> int:
        """Delete everything that expired. Return how many responses did."""
        for step in self._first_steps():
            await self._repeat(step)
        expired = await self._repeat(self._expire_by_time)
        expired += await self._repeat(self._expire_by_retention)
        while await self._drop_buried():
            pass
        return expired

    def _first_steps(self) -> Sequence[_Step]:
        retention, now = self._retention, self._now
        steps = [
            self._query("expire_files", now, _FILES),
            self._query("expire_vector_files", now, _FILES),
            self._query("see_ended", max(now, 1), _ROWS),
        ]
        if retention.max_age_s is not None:
            steps.append(self._query("expire_approvals", int(now - retention.max_age_s), _ROWS))
        if retention.max_log_age_s is not None:
            steps.append(self._query("bury_runs", int(now - retention.max_log_age_s), _ROWS))
        return steps

    def _query(self, name: str, *arguments: Any) -> _Step:
        """Return the step that runs one query."""
        query = self._queries[name]
        return lambda connection: connection.execute(query, arguments).rowcount

    async def _drop_buried(self) -> bool:
        """Delete the batches of deleted runs, then the runs that have none. Return whether there
        were any."""
        batches = await self._repeat(self._query("drop_buried_batches", _ROWS))
        runs = await self._repeat(self._query("drop_buried_runs", _ROWS))
        return bool(batches or runs)

    async def _repeat(self, step: _Step) -> int:
        """Repeat a step, each time in a write, until nothing is left for it. Return how many rows
        it changed."""
        total = 0
        while count := await self._database.write(step):
            total += count
        return total

    def _expire_by_time(self, connection: sqlite3.Connection) -> int:
        end = time.monotonic() + _SLICE_S
        deleted = 0
        lapsed = connection.execute(self._queries["lapsed"], (self._now, _ROWS)).fetchall()
        for (seq,) in lapsed:
            self._delete_response(connection, seq)
            deleted += 1
            if time.monotonic() > end:
                break
        return deleted

    def _expire_by_retention(self, connection: sqlite3.Connection) -> int:
        end = time.monotonic() + _SLICE_S
        deleted = 0
        count, size = connection.execute(self._queries["totals"]).fetchone()
        oldest = connection.execute(self._queries["oldest"], (_ROWS,)).fetchall()
        for seq, created_at in oldest:
            age_s = self._now - created_at
            if not self._retention.is_exceeded(age_s=age_s, responses=count, bytes=size):
                break
            count -= 1
            size -= self._delete_response(connection, seq)
            deleted += 1
            if time.monotonic() > end:
                break
        return deleted

    def _delete_response(self, connection: sqlite3.Connection, seq: int) -> int:
        connection.execute(self._queries["bury"], (seq,))
        connection.execute(self._queries["bury_run_of"], (seq,))
        return free_unneeded(connection, self._queries, seq)


def free_unneeded(connection: sqlite3.Connection, queries: Mapping[str, str], seq: int) -> int:
    """Free a deleted response without descendants, then its ancestors likewise. Return the freed
    bytes."""
    freed = 0
    row: tuple[int] | None = (seq,)
    while row is not None:
        gone = connection.execute(queries["unneeded"], row).fetchone()
        if gone is None:
            break
        connection.execute(queries["free"], row)
        freed += int(gone[0])
        row = connection.execute(queries["row_of"], gone[1:]).fetchone()
    return freed
