"""The journal in a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from antiphon.store.journal import Journal, JournalEntry
from antiphon.store.sql.row_mapping import journal_entry_of

from .executor import Executor, SqlTransaction, index_key


class SqlJournal(Journal):
    """Implements ``Journal`` with a table."""

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        rows = [
            (
                *(tenant, index_key(each.key), index_key(each.response_id)),
                *(each.attempt, each.intent, now, each.is_approval),
            )
            for each in sorted(entries, key=lambda each: each.key)  # one order: no deadlocks
        ]
        await self._executor.change_many("begin_entry", rows)
        # A statement of its own: an entry that another process has just begun is visible only now.
        stored = {each.key: each for each in await self.find(tenant, [e.key for e in entries])}
        return tuple(stored.get(each.key) for each in entries)

    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        row = (tenant, index_key(key))

        async def work(transaction: SqlTransaction) -> bool:
            # Compared here, because two encryptions of one result differ.
            found = await transaction.rows("locked_result", *row)
            if not found or found[0][0] not in (old, new):
                return False
            await transaction.change("settle_entry", *row, new)
            return True

        return await self._executor.write(work)

    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        by_index = {index_key(key): key for key in keys}
        rows = await self._executor.rows("journal_entries", tenant, list(by_index))
        entries = map(journal_entry_of, rows)
        return tuple(replace(entry, key=by_index[entry.key]) for entry in entries)
