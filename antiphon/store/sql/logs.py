"""The audit log, the usage log and the journal in tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import astuple, replace

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord
from antiphon.store.journal import Journal, JournalEntry
from antiphon.store.usage import UsageLog, UsageQuery, UsageRecord, UsageTotals

from .executor import Executor, SqlTransaction, index_key
from .row_mapping import journal_entry_of, usage_totals_of

_AUDIT_COLUMNS = AuditRecord.__struct_fields__


class SqlAudit(AuditLog):
    """Implements ``AuditLog`` with a table."""

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def add(self, record: AuditRecord) -> None:
        await self._executor.change("add_audit", *astuple(record))

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        after = None
        if query.after is not None:
            found = await self._executor.rows("audit_row", query.after)
            if not found:
                return None
            after = found[0][0]
        name = "audit_newest" if query.newest_first else "audit_oldest"
        filters = (query.type, query.actor, query.target, query.start, query.end)
        rows = await self._executor.rows(name, *filters, after, query.limit)
        return tuple(AuditRecord(**dict(zip(_AUDIT_COLUMNS, row, strict=True))) for row in rows)


class SqlUsage(UsageLog):
    """Implements ``UsageLog`` with a table of records and a table of their sums."""

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def add(self, records: Sequence[UsageRecord]) -> None:
        await self._executor.change_many("add_usage", [astuple(record) for record in records])

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        named = (query.tenants, query.api_keys, query.models)
        lists = (None if names is None else list(names) for names in named)
        groups = (name in query.group_by for name in ("tenant", "api_key", "model"))
        arguments = (query.start, query.end, query.width, query.kind, *lists, *groups)
        return usage_totals_of(await self._executor.rows("usage_totals", *arguments))


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
        # If another process has just begun an entry, only a new statement sees this entry.
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
