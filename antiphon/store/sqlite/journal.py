"""The journal in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from antiphon.store.common.row_mapping import journal_entry_of
from antiphon.store.journal import Journal, JournalEntry

from .database import Database


class SqliteJournal(Journal):
    """Implements ``Journal`` with a table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        queries = self._database.queries

        def work(connection: sqlite3.Connection) -> tuple[JournalEntry | None, ...]:
            for each in entries:
                name = "begin_approval_entry" if each.is_approval else "begin_call_entry"
                row = (tenant, each.key, each.response_id, each.attempt, each.intent, now)
                connection.execute(queries[name], row)
            return tuple(self._find(connection, tenant, each.key) for each in entries)

        return await self._database.write(work)

    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            # Compared here, because two encryptions of one result differ.
            found = self._find(connection, tenant, key)
            if found is None or found.result not in (old, new):
                return False
            connection.execute(self._database.queries["settle_entry"], (new, tenant, key))
            return True

        return await self._database.write(work)

    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        def work(connection: sqlite3.Connection) -> tuple[JournalEntry, ...]:
            found = (self._find(connection, tenant, key) for key in keys)
            return tuple(entry for entry in found if entry is not None)

        return await self._database.read(work)

    def _find(self, connection: sqlite3.Connection, tenant: str, key: str) -> JournalEntry | None:
        query = self._database.queries["journal_entry"]
        row = connection.execute(query, (tenant, key)).fetchone()
        return None if row is None else journal_entry_of(row)
