"""The SQLite audit log."""

from __future__ import annotations

from msgspec.structs import astuple

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord

from .database import Database


class SqliteAudit(AuditLog):
    """Implements ``AuditLog`` with tables of an SQLite database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: AuditRecord) -> None:
        statement = self._database.queries["add_audit"]
        await self._database.write(
            lambda connection: connection.execute(statement, astuple(record)).rowcount
        )

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        after = None
        if query.after is not None:
            found = await self._database.rows("audit_row", (query.after,), tuple)
            if not found:
                return None
            after = found[0][0]
        name = "audit_newest" if query.newest_first else "audit_oldest"
        filters = (query.type, query.actor, query.target, query.start, query.end)
        rows = await self._database.rows(name, (*filters, after, query.limit), tuple)
        return tuple(AuditRecord(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)


_COLUMNS = AuditRecord.__struct_fields__
