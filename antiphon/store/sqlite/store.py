"""The SQLite store, which one process or several processes on one machine can use. This module
stores responses and conversations.

A server with one process is a server with one worker: leases, locks, limits and reservations are
in tables in both cases. Processes that share the database also notify each other over sockets.

The columns for the inputs, outputs and other contents of responses contain JSON in the format of
the API. Token ids are stored as packed integers.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec.structs import astuple

from antiphon.store.base import Retention
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.common.saving import Saving
from antiphon.store.containers import ContainerDirectory
from antiphon.store.rates import RateStore
from antiphon.store.records import (
    Reservation,
    ResponseQuery,
)
from antiphon.store.sql.deletion_steps import TENANT_STEPS
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import (
    Columns,
    response_row,
    summary_of,
    summary_row,
)
from antiphon.store.sql.store import SaveStep, SqlStore
from antiphon.store.sql.vectors import SqlVectorIndex
from antiphon.wire.response_list import ResponseSummary

from .database import Database, Deletion
from .executor import SqliteExecutor, SqliteTransaction
from .rewriting import rewrite_rows
from .runs import SqliteRuns
from .sweep import SqliteSweep, free_unneeded

#: Statements that delete the records of processes that have ended.
_FORGET_PROCESSES = (
    "forget_owners",
    "forget_locks",
    "forget_reservations",
    "forget_shared_values",
    "restore_locks",
)


class SqliteStore(SqlStore[SqliteTransaction]):
    """Implements ``Store`` with one database file. Made by ``open``. ``peers``: a folder for the
    sockets of the processes that share the database; None if only this process uses it."""

    runs: SqliteRuns

    def __init__(self, database: Database, peers: Path | None = None) -> None:
        executor = SqliteExecutor(database)
        super().__init__(executor)
        self._database = database
        self._queries = database.queries
        self.runs = SqliteRuns(database, self.prepare_save, peers)
        self.rates = RateStore(self.values)
        self.vectors = SqliteVectorIndex(executor)
        self.containers = ContainerDirectory(self.values)

    @classmethod
    async def open(
        cls, path: Path, *, peers: Path | None = None, cipher: RowCipher | None = None
    ) -> SqliteStore:
        """Open or create the database. ``peers``: a folder for the sockets of all processes that
        share the database. None means that only this process uses it. The records of earlier
        processes, such as their leases, are then deleted. ``cipher``: as in ``Database.open``,
        which also says when ``SetupError`` is raised."""
        database = await Database.open(path, is_shared=peers is not None, cipher=cipher)
        store = cls(database, peers)
        try:
            if peers is None:
                await store._forget_processes()
            await store.runs.open()
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    async def open_temporary(cls, cipher: RowCipher | None = None) -> SqliteStore:
        """Open a new database in a temporary file. The file is unlinked as soon as it is open, so
        the operating system frees its space when the store is closed or the process is killed.
        ``cipher``: as in ``open``. Raises ``SetupError``."""
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="antiphon-"))
        try:
            return await cls.open(folder / "store.db", cipher=cipher)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder)

    async def _forget_processes(self) -> None:
        """Delete the records of processes that used the database earlier, such as their leases. The
        conversation locks of unended runs are kept, but have no owner."""

        def work(connection: sqlite3.Connection) -> None:
            for query in _FORGET_PROCESSES:
                connection.execute(self._queries[query])

        await self._database.write(work)

    @property
    def commits(self) -> int:
        """Number of commits since the database was opened."""
        return self._database.commits

    # --- the contract ----------------------------------------------------------------------------

    async def _save(self, saving: Saving) -> None:
        await self._database.write(self._save_work(saving))

    async def _prepare_save(self, saving: Saving) -> SaveStep[SqliteTransaction]:
        work = self._save_work(saving)

        async def save(transaction: SqliteTransaction) -> None:
            work(transaction.connection)

        return save

    async def _summaries(
        self, tenant: str, query: ResponseQuery, filters: Columns, after: int | None
    ) -> list[ResponseSummary]:
        name = "summaries_newest" if query.newest_first else "summaries_oldest"
        return await self._executor.decoded_rows(
            summary_of, name, tenant, *filters, after, query.limit
        )

    async def delete(self, tenant: str, response_id: str) -> bool:
        key = (tenant, response_id)

        def work(connection: sqlite3.Connection) -> tuple[bool, bool]:
            row = connection.execute(self._queries["stored_row"], key).fetchone()
            if row is None or not connection.execute(self._queries["mark_deleted"], row).rowcount:
                return False, False
            had_run = connection.execute(self._queries["mark_run_deleted"], key).rowcount > 0
            if had_run:
                self.runs.forget(connection, *key)
            free_unneeded(connection, self._queries, row[0])
            return True, had_run

        def notify(result: tuple[bool, bool]) -> None:
            if result[1]:
                self.runs.remove(*key)

        return (await self._database.write(work, then=notify, frees_space=True))[0]

    async def delete_tenant(self, tenant: str) -> int:
        total = await self.containers.delete_tenant(tenant)
        for name, rows in TENANT_STEPS.items():
            if name in self._queries:
                deletion = _tenant_deletion(self._queries[name], tenant)
                total += await self._database.delete_in_steps(deletion, rows)
        return total

    async def rewrite_rows(self) -> int:
        return await rewrite_rows(self._database)

    async def reserve_response(self, reservation: Reservation) -> bool:
        return await self.runs.reserve_response(reservation)

    async def sweep(self, retention: Retention, now: int) -> int:
        with self._database.sweep_lock() as is_free:
            return await SqliteSweep(self._database, retention, now).run() if is_free else 0

    async def close(self) -> None:
        await self.runs.close()
        await self._database.close()

    # --- within a write --------------------------------------------------------------------------

    def _save_work(self, saving: Saving) -> Callable[[sqlite3.Connection], None]:
        """Return a function that saves a response, except for the items of its conversation. The
        function must be called within a transaction (``Database.write``)."""
        tenant, stored = saving.tenant, saving.stored
        added = (*stored.input, *stored.response.output)
        ids = [index_key(item.id) for item in added] if saving.listed else None

        def work(connection: sqlite3.Connection) -> None:
            # Encode in this thread, because encoding a long response takes a while and needs
            # memory. Each statement switches between this thread and the event loop, so use few.
            row = self._put_response(connection, response_row(tenant, stored, saving.expires_at))
            columns = summary_row(stored, is_searchable=not self.is_encrypted)
            connection.execute(self._queries["save_summary"], (row, tenant, *columns))
            if ids is not None:
                connection.execute(self._queries["save_items"], (tenant, row, ids))
            if saving.usage is not None:
                connection.execute(self._queries["add_usage"], astuple(saving.usage))

        return work

    def _put_response(self, connection: sqlite3.Connection, columns: Columns) -> int:
        """Insert or replace the row of a response. Return its row number."""
        inserted = connection.execute(self._queries["insert"], columns)
        if inserted.rowcount:
            return inserted.lastrowid or 0
        connection.execute(self._queries["replace"], columns)
        row: int = connection.execute(self._queries["stored_row"], columns[:2]).fetchone()[0]
        return row


def _tenant_deletion(query: str, tenant: str) -> Deletion:
    """Return the write that deletes rows of a tenant with this query."""
    return lambda connection, rows: connection.execute(query, (tenant, rows)).rowcount


class SqliteVectorIndex(SqlVectorIndex[SqliteTransaction]):
    """The vector index in an SQLite database."""

    def _any_of(self, words: Collection[str]) -> str:
        return " OR ".join('"{}"'.format(word.replace('"', '""')) for word in words)
