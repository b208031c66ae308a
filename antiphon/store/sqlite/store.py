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

from msgspec.structs import astuple, replace

from antiphon.store.base import Retention, Store
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.common.row_mapping import (
    Columns,
    conversation_of,
    encode,
    item_kind,
    item_of,
    items_of,
    response_row,
    stored_of,
    summary_filters,
    summary_of,
    summary_row,
)
from antiphon.store.common.saving import Saving
from antiphon.store.common.tenant_steps import TENANT_STEPS
from antiphon.store.containers import ContainerDirectory
from antiphon.store.keys import KeyStore
from antiphon.store.records import (
    ConversationLock,
    ItemQuery,
    Reservation,
    ResponseQuery,
    StoredResponse,
    TenantUsage,
)
from antiphon.store.response_lists import search_summaries
from antiphon.store.skills import SkillStore
from antiphon.store.sql.audit import SqlAudit
from antiphon.store.sql.files import SqlFiles
from antiphon.store.sql.journal import SqlJournal
from antiphon.store.sql.usage import SqlUsage
from antiphon.store.sql.values import SqlValues
from antiphon.store.usage import UsageRecord
from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary

from .database import Database, Deletion
from .executor import SqliteExecutor
from .rates import SqliteRates
from .rewriting import rewrite_rows
from .runs import SqliteRuns
from .sweep import SqliteSweep, free_unneeded
from .vectors import SqliteVectorIndex

#: Statements that delete the records of processes that have ended.
_FORGET_PROCESSES = (
    "forget_owners",
    "forget_locks",
    "forget_reservations",
    "forget_rate_levels",
    "forget_rate_running",
    "forget_containers",
    "restore_locks",
)


class SqliteStore(Store):
    """Implements ``Store`` with one database file. Made by ``open``. ``peers``: a folder for the
    sockets of the processes that share the database; None if only this process uses it."""

    def __init__(self, database: Database, peers: Path | None = None) -> None:
        self._database = database
        self._queries = database.queries
        self.is_encrypted = database.is_encrypted
        executor = SqliteExecutor(database)
        self.runs = SqliteRuns(database, self._save_work, peers)
        self.rates = SqliteRates(database)
        self.files = SqlFiles(executor)
        self.vectors = SqliteVectorIndex(executor)
        self.values = SqlValues(executor)
        self.containers = ContainerDirectory(self.values)
        self.journal = SqlJournal(executor)
        self.keys = KeyStore(self.values)
        self.skills = SkillStore(self.values)
        self.audit = SqlAudit(executor)
        self.usage_log = SqlUsage(executor)

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

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        saving = Saving(tenant=tenant, stored=stored, usage=usage)
        if lock is None:
            await self._database.write(self._save_work(saving))
            return True
        key = (tenant, stored.response.id)
        save_response = self._save_work(replace(saving, conversation=lock.conversation))

        def work(connection: sqlite3.Connection) -> bool:
            if connection.execute(self._queries["row_of"], key).fetchone() is not None:
                return True
            is_locked = self.runs.has_lock(connection, *key, lock)
            if is_locked:
                save_response(connection)
            return is_locked

        return await self._database.write(work)

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        found = await self._database.rows("load", (tenant, response_id), stored_of)
        return found[0] if found else None

    async def has_response(self, tenant: str, response_id: str) -> bool:
        return await self._loadable_row(tenant, response_id) is not None

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        return tuple(await self._database.rows("chain", (tenant, response_id), stored_of)) or None

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        if self.is_encrypted and query.text:
            return await search_summaries(self.list_responses, tenant, query)
        after = None
        if query.after is not None:
            after = await self._loadable_row(tenant, query.after)
            if after is None:
                return None
        name = "summaries_newest" if query.newest_first else "summaries_oldest"
        arguments = (tenant, *summary_filters(query), after, query.limit)
        return tuple(await self._database.rows(name, arguments, summary_of))

    async def _loadable_row(self, tenant: str, response_id: str) -> int | None:
        key = (tenant, response_id)
        found = await self._database.rows("loadable_row", key, lambda row: int(row[0]))
        return found[0] if found else None

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        rows = await self._database.rows("item", (tenant, item_id), items_of)
        if not rows:
            items = await self._database.rows("conversation_item", (tenant, item_id), item_of)
            return items[0] if items else None
        return next(item for item in rows[0] if item.id == item_id)

    async def delete(self, tenant: str, response_id: str) -> bool:
        key = (tenant, response_id)

        def work(connection: sqlite3.Connection) -> tuple[bool, bool]:
            row = connection.execute(self._queries["row_of"], key).fetchone()
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

    async def usage(self, tenant: str) -> TenantUsage:
        return (await self._database.rows("usage", (tenant,), lambda row: TenantUsage(*row)))[0]

    async def reserve_response(self, reservation: Reservation) -> bool:
        return await self.runs.reserve_response(reservation)

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        await self.runs.release_reservation(tenant, response_id, owner)

    async def sweep(self, retention: Retention, now: int) -> int:
        with self._database.sweep_lock() as is_free:
            return await SqliteSweep(self._database, retention, now).run() if is_free else 0

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        row = (tenant, conversation.id, encode(conversation))

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["put_conversation"], row)
            self._append_items(connection, tenant, conversation.id, items)

        await self._database.write(work)

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        key = (tenant, after, limit)
        return tuple(await self._database.rows("conversations", key, conversation_of))

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        found = await self._database.rows(
            "conversation", (tenant, conversation_id), conversation_of
        )
        return found[0] if found else None

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        return await self._database.delete("drop_conversation", (tenant, conversation_id)) > 0

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        return await self._database.write(
            lambda connection: self._append_items(connection, tenant, conversation_id, items)
        )

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        return tuple(
            await self._database.rows("conversation_items", (tenant, conversation_id), item_of)
        )

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        name = "newest_items" if query.newest_first else "oldest_items"
        key = (tenant, conversation_id)
        arguments: Columns = (*key, query.after, query.until, query.limit)
        if query.kinds is not None:
            name, arguments = f"{name}_of_kinds", (*arguments, encode(sorted(query.kinds)).decode())
        items = await self._database.rows(name, arguments, item_of)
        if not items and query.cursors:
            found = await self.find_conversation_items(*key, query.cursors)
            return () if len(found) == len(query.cursors) else None
        return tuple(items)

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        arguments = (tenant, conversation_id, encode(sorted(item_ids)).decode())
        return tuple(await self._database.rows("items_by_id", arguments, item_of))

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = self._conversation_row(connection, tenant, conversation_id)
            if row is None:
                return False
            return connection.execute(self._queries["remove_item"], (item_id, row)).rowcount > 0

        return await self._database.write(work, frees_space=True)

    async def close(self) -> None:
        await self.runs.close()
        await self._database.close()

    # --- within a write --------------------------------------------------------------------------

    def _save_work(self, saving: Saving) -> Callable[[sqlite3.Connection], None]:
        """Return a function that saves a response. The function must be called within a transaction
        (``Database.write``)."""
        tenant, stored = saving.tenant, saving.stored
        added = (*stored.input, *stored.response.output)
        ids = encode([item.id for item in added]).decode() if saving.listed else None

        def work(connection: sqlite3.Connection) -> None:
            # Encode in this thread, because encoding a long response takes a while and needs
            # memory. Each statement switches between this thread and the event loop, so use few.
            row = self._put_response(connection, response_row(tenant, stored, saving.expires_at))
            columns = summary_row(stored, is_searchable=not self.is_encrypted)
            connection.execute(self._queries["save_summary"], (row, tenant, *columns))
            if ids is not None:
                connection.execute(self._queries["save_items"], (ids, tenant, row))
            if saving.conversation is not None:
                self._append_items(connection, tenant, saving.conversation, added)
            if saving.usage is not None:
                connection.execute(self._queries["add_usage"], astuple(saving.usage))

        return work

    def _put_response(self, connection: sqlite3.Connection, columns: Columns) -> int:
        """Insert or replace the row of a response. Return its row number."""
        inserted = connection.execute(self._queries["insert"], columns)
        if inserted.rowcount:
            return inserted.lastrowid or 0
        connection.execute(self._queries["replace"], columns)
        row: int = connection.execute(self._queries["row_of"], columns[:2]).fetchone()[0]
        return row

    def _conversation_row(
        self, connection: sqlite3.Connection, tenant: str, conversation: str
    ) -> int | None:
        query = self._queries["conversation_row"]
        row = connection.execute(query, (tenant, conversation)).fetchone()
        return None if row is None else int(row[0])

    def _append_items(
        self,
        connection: sqlite3.Connection,
        tenant: str,
        conversation: str,
        items: tuple[Item, ...],
    ) -> bool:
        row = self._conversation_row(connection, tenant, conversation)
        if row is not None:
            connection.executemany(
                self._queries["add_item"],
                [(row, tenant, item.id, item_kind(item), encode(item)) for item in items],
            )
        return row is not None


def _tenant_deletion(query: str, tenant: str) -> Deletion:
    """Return the write that deletes rows of a tenant with this query."""
    return lambda connection, rows: connection.execute(query, (tenant, rows)).rowcount
