"""The in-memory audit log, the reference implementation of the contract ``AuditLog``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord


class MemoryAudit(AuditLog):
    """Implements ``AuditLog`` with a list. ``check``: a function that the methods call first. It
    raises ``StoreError`` if the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._records: list[AuditRecord] = []

    async def add(self, record: AuditRecord) -> None:
        self._check()
        self._records.append(record)

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        self._check()
        records = self._records[::-1] if query.newest_first else self._records
        if query.after is not None:
            ids = [record.id for record in records]
            if query.after not in ids:
                return None
            records = records[ids.index(query.after) + 1 :]
        found = (record for record in records if _matches(record, query))
        return tuple(islice(found, query.limit))

    def expire(self, before: float) -> None:
        """Delete the records that are older than ``before``, in unix seconds."""
        self._records = [record for record in self._records if record.at >= before]


def _matches(record: AuditRecord, query: AuditQuery) -> bool:
    wanted_and_found = (
        (query.type, record.type),
        (query.actor, record.actor),
        (query.target, record.target),
    )
    return (
        all(wanted in (None, found) for wanted, found in wanted_and_found)
        and (query.start is None or record.at >= query.start)
        and (query.end is None or record.at < query.end)
    )
