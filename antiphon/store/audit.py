"""The contract of an audit log. The log records who administered a server, when and how. It
contains no secrets and no text that users wrote."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from msgspec import Struct

__all__ = ["AuditLog", "AuditQuery", "AuditRecord"]


class AuditRecord(Struct, frozen=True, kw_only=True):
    """One record of the audit log: an administrative act.

    ``at``: Unix seconds. ``type``: for example ``api_key.created``. ``target``: the name or id of
    the changed object. ``actor``: the name of the API key with which the act was authorized; ""
    without a key. ``actor_tenant``: the tenant of this key. ``address``: the address of the client.
    The fields have the same order as the columns of the table.
    """

    id: str
    at: int
    type: str
    target: str = ""
    actor: str = ""
    actor_tenant: str = ""
    address: str = ""


class AuditQuery(Struct, frozen=True, kw_only=True):
    """A query for a page of the audit log. A field that is None does not restrict the query.
    ``start``: the first second of the time range, in Unix seconds. ``end``: the first second after
    the time range. ``after``: the id of the last record of the previous page."""

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

    @abstractmethod
    async def add(self, record: AuditRecord) -> None:
        """Add a record. Returns after the record is durable."""

    @abstractmethod
    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        """Return a page of records, newest first or oldest first as in ``query``. Returns None if
        ``query.after`` is unknown."""
