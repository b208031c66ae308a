"""The journal in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from antiphon.store.common.row_mapping import journal_entry_of
from antiphon.store.journal import Journal, JournalEntry

from .pool import ConnectionPool, index_key


class PostgresJournal(Journal):
    """Implements ``Journal`` with a table."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        await self._pool.rows(
            "begin_entries",
            tenant,
            now,
            [index_key(each.key) for each in entries],
            [index_key(each.response_id) for each in entries],
            [each.attempt for each in entries],
            [each.intent for each in entries],
            [each.is_approval for each in entries],
        )
        # A statement of its own: an entry that another process has just begun is visible only now.
        stored = {each.key: each for each in await self.find(tenant, [e.key for e in entries])}
        return tuple(stored.get(each.key) for each in entries)

    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        name = index_key(key)
        async with self._pool.transaction() as transaction:
            # Compared here, because two encryptions of one result differ.
            found = await transaction.rows("locked_result", tenant, name)
            if not found or found[0][0] not in (old, new):
                return False
            await transaction.rows("settle_entry", tenant, name, new)
        return True

    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        by_index = {index_key(key): key for key in keys}
        rows = await self._pool.rows("journal_entries", tenant, list(by_index))
        entries = map(journal_entry_of, rows)
        return tuple(replace(entry, key=by_index[entry.key]) for entry in entries)
