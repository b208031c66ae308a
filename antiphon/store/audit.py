"""The contract of an audit log: who administered a server, when and how. It contains no secrets and
nothing that users wrote."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["AuditLog", "AuditQuery", "AuditRecord"]


class AuditRecord(Struct, frozen=True, kw_only=True):
    """An administrative act.

    ``at``: unix seconds. ``type``: such as ``api_key.created``. ``target``: the name or id of what
    was changed. ``actor``: the name of the key that was used, "" without one; ``actor_tenant``: its
    tenant. ``address``: of the client. The order of the fields is that of the columns.
    """

    id: str
    at: int
    type: str
    target: str = ""
    actor: str = ""
    actor_tenant: str = ""
    address: str = ""


class AuditQuery(Struct, frozen=True, kw_only=True):
    """A page of the log. None means any. ``start``: the first second of the range; ``end``: the
    first second after the range. ``after``: the id of the last record before the page."""

    type: str | None = None
    actor: str | None = None
    target: str | None = None
    start: int | None = None
    end: int | None = None
    after: str | None = None
    newest_first: bool = True
    limit: int = 20


class AuditLog(Protocol):
    """The contract of an audit log. ``Store.sweep`` deletes old records."""

    async def add(self, record: AuditRecord) -> None:
        """Add a record. Return when it is durable."""

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        """Return a page in the order of addition; None if ``after`` is unknown."""
