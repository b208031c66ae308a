"""The audit log in a table."""

from __future__ import annotations

from msgspec.structs import astuple

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord

from .executor import Executor, SqlTransaction

_COLUMNS = AuditRecord.__struct_fields__


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
        return tuple(AuditRecord(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)
