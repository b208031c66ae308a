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
import tempfile
from collections.abc import Collection
from functools import partial
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
from antiphon.store.sql.runs import SaveStep
from antiphon.store.sql.store import SqlStore
from antiphon.store.sql.vectors import SqlVectorIndex
from antiphon.wire.response_list import ResponseSummary

from .database import Database
from .executor import SqliteExecutor, SqliteTransaction
from .rewriting import rewrite_rows
from .runs import SqliteRuns, oldest_heartbeat, record_heartbeat
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
    _executor: SqliteExecutor

    def __init__(self, database: Database, peers: Path | None = None) -> None:
        super().__init__(SqliteExecutor(database))
        self._database = database
        self.runs = SqliteRuns(database, self.prepare_save, peers)
        self.rates = RateStore(self.values)
        self.vectors = SqliteVectorIndex(self._executor)
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
            await store.runs.notifications.open()
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

        def work(transaction: SqliteTransaction) -> None:
            for query in _FORGET_PROCESSES:
                transaction.execute(query)

        await self._executor.apply(work)

    @property
    def commits(self) -> int:
        """Number of commits since the database was opened."""
        return self._database.commits

    # --- the contract ----------------------------------------------------------------------------

    async def _prepare_save(self, saving: Saving) -> SaveStep[SqliteTransaction]:
        tenant, stored = saving.tenant, saving.stored
        added = (*stored.input, *stored.response.output)
        ids = [index_key(item.id) for item in added] if saving.listed else None

        async def save(transaction: SqliteTransaction) -> None:
            # Encode in this thread, because encoding a long response takes a while and needs
            # memory. Each statement switches between this thread and the event loop, so use few.
            row = _put_response(transaction, response_row(tenant, stored, saving.expires_at))
            columns = summary_row(stored, is_searchable=not self.is_encrypted)
            transaction.execute("save_summary", row, tenant, *columns)
            if ids is not None:
                transaction.execute("save_items", tenant, row, ids)
            if saving.usage is not None:
                transaction.execute("add_usage", *astuple(saving.usage))

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

        def work(transaction: SqliteTransaction) -> tuple[bool, bool]:
            row = transaction.execute("stored_row", *key).fetchone()
            if row is None or not transaction.execute("mark_deleted", *row).rowcount:
                return False, False
            had_run = transaction.execute("mark_run_deleted", *key).rowcount > 0
            if had_run:
                transaction.execute("drop_locks", *key)
            free_unneeded(transaction, row)
            return True, had_run

        def notify(result: tuple[bool, bool]) -> None:
            if result[1]:
                self.runs.notifications.on_run_ended(*key)

        return (await self._executor.apply(work, then=notify, frees_space=True))[0]

    async def delete_tenant(self, tenant: str) -> int:
        total = await self.containers.delete_tenant(tenant)
        for name, rows in TENANT_STEPS.items():
            if name in self._database.queries:
                work = partial(_delete_rows, name, tenant)
                total += await self._executor.delete_in_steps(work, rows)
        return total

    async def rewrite_rows(self) -> int:
        return await rewrite_rows(self._database)

    async def reserve_response(self, reservation: Reservation) -> bool:
        tenant, owner = reservation.tenant, reservation.owner
        key = (tenant, index_key(reservation.response_id))
        limits = (reservation.max_responses, reservation.max_bytes)

        def work(transaction: SqliteTransaction) -> bool:
            record_heartbeat(transaction, owner)
            oldest = oldest_heartbeat(reservation.lease_s)
            transaction.execute("drop_dead_reservations", tenant, oldest)
            (has_room,) = transaction.execute("has_room", *key, *limits).fetchone()
            if has_room:
                transaction.execute("put_reservation", *key, owner)
            return bool(has_room)

        return await self._executor.apply(work)

    async def sweep(self, retention: Retention, now: int) -> int:
        with self._database.sweep_lock() as is_free:
            return await SqliteSweep(self._executor, retention, now).run() if is_free else 0

    async def close(self) -> None:
        await self.runs.notifications.close()
        await self._database.close()


def _delete_rows(query: str, tenant: str, limit: int, transaction: SqliteTransaction) -> int:
    return transaction.execute(query, tenant, limit).rowcount


def _put_response(transaction: SqliteTransaction, columns: Columns) -> int:
    """Insert or replace the row of a response. Return its row number."""
    inserted = transaction.execute("insert", *columns)
    if inserted.rowcount:
        return inserted.lastrowid or 0
    transaction.execute("replace", *columns)
    row: int = transaction.execute("stored_row", *columns[:2]).fetchone()[0]
    return row


class SqliteVectorIndex(SqlVectorIndex[SqliteTransaction]):
    """The vector index in an SQLite database."""

    def _any_of(self, words: Collection[str]) -> str:
        return " OR ".join('"{}"'.format(word.replace('"', '""')) for word in words)
