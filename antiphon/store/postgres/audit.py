"""The PostgreSQL audit log."""

from __future__ import annotations

from msgspec.structs import astuple

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord

from .pool import ConnectionPool


class PostgresAudit(AuditLog):
    """Implements ``AuditLog`` with tables in PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def add(self, record: AuditRecord) -> None:
        await self._pool.rows("add_audit", *astuple(record))

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        after = None
        if query.after is not None:
            found = await self._pool.rows("audit_row", query.after)
            if not found:
                return None
            after = found[0][0]
        name = "audit_newest" if query.newest_first else "audit_oldest"
        filters = (query.type, query.actor, query.target, query.start, query.end)
        rows = await self._pool.rows(name, *filters, after, query.limit)
        return tuple(AuditRecord(**dict(row)) for row in rows)
