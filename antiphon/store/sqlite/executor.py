"""The SQLite database as the executor of the logic that all SQL databases share.

The operations of a transaction end when they are called, so a write never waits. Thus the thread
that writes can run it to its end in one step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from antiphon.errors import StoreError
from antiphon.store.sql.row_mapping import Columns, Row

from .database import Database

_T = TypeVar("_T")


class SqliteTransaction:
    """Implements ``SqlTransaction`` with a connection in a transaction. ``queries``: the SQL
    statements by name."""

    __slots__ = ("_queries", "connection")

    def __init__(self, connection: sqlite3.Connection, queries: Mapping[str, str]) -> None:
        self.connection = connection
        self._queries = queries

    def execute(self, name: str, *arguments: object) -> sqlite3.Cursor:
        """Execute the query with this name. Rows are read from the cursor when they are needed."""
        return self.connection.execute(self._queries[name], arguments)

    async def rows(self, name: str, *arguments: object) -> list[Row]:
        return self.execute(name, *arguments).fetchall()

    async def value(self, name: str, *arguments: object) -> Any:
        row = self.execute(name, *arguments).fetchone()
        return None if row is None else row[0]

    async def insert(self, name: str, *arguments: object) -> int:
        return self.execute(name, *arguments).lastrowid or 0

    async def change(self, name: str, *arguments: object) -> int:
        return self.execute(name, *arguments).rowcount

    async def change_many(self, name: str, rows: Sequence[Columns]) -> None:
        self.connection.executemany(self._queries[name], rows)


#: A write that changes at most as many rows as its first argument says. Returns their number.
Deletion: TypeAlias = Callable[[int, SqliteTransaction], int]


class SqliteExecutor:
    """Implements ``Executor`` with an SQLite database. It needs no locks of tenants, because only
    one transaction at a time writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_encrypted = database.is_encrypted

    async def rows(self, name: str, *arguments: object) -> list[Row]:
        return await self._database.rows(name, arguments, tuple)

    async def decoded_rows(
        self, decode: Callable[[Row], _T], name: str, *arguments: object
    ) -> list[_T]:
        return await self._database.rows(name, arguments, decode)

    async def change(self, name: str, *arguments: object, frees_space: bool = False) -> int:
        query = self._database.queries[name]
        return await self._database.write(
            lambda connection: connection.execute(query, arguments).rowcount,
            frees_space=frees_space,
        )

    async def change_many(self, name: str, rows: Sequence[Columns]) -> None:
        await self.write(lambda transaction: transaction.change_many(name, rows))

    async def write(
        self,
        work: Callable[[SqliteTransaction], Coroutine[object, None, _T]],
        *,
        alone: tuple[str, str] | None = None,
        frees_space: bool = False,
        then: Callable[[_T], None] | None = None,
    ) -> _T:
        return await self.apply(
            lambda transaction: _run(work(transaction)), then=then, frees_space=frees_space
        )

    async def apply(
        self,
        work: Callable[[SqliteTransaction], _T],
        *,
        frees_space: bool = False,
        then: Callable[[_T], None] | None = None,
    ) -> _T:
        """Like ``write``, for a function that is no coroutine."""
        queries = self._database.queries
        return await self._database.write(
            lambda connection: work(SqliteTransaction(connection, queries)),
            then=then,
            frees_space=frees_space,
        )

    async def delete_in_steps(self, work: Deletion, rows: int) -> int:
        """Repeat a write until it changes no row. Each write may change ``rows`` rows. On a full
        disk, the writes become smaller until the reserve is enough. Return how many rows were
        changed in all. Raises ``StoreError``."""
        total = 0
        while True:
            try:
                count = await self.apply(partial(work, rows), frees_space=True)
            except StoreError:
                if rows == 1:
                    raise
                rows = max(1, rows // 8)
                continue
            if not count:
                return total
            total += count


def _run(work: Coroutine[object, None, _T]) -> _T:
    """Run a coroutine that waits only for the operations of its ``SqliteTransaction``."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise RuntimeError("a write waits for something outside its transaction")
