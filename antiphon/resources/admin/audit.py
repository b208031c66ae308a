"""The audit log: administrative actions and who performed them."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, StoreError
from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord
from antiphon.stream.writer import Ids
from antiphon.wire.admin.audit import AuditActor, AuditEvent
from antiphon.wire.cursors import page_of
from antiphon.wire.pagination import Page

__all__ = ["AuditQuery", "AuditTrail"]

_log = structlog.get_logger(__name__)


class AuditTrail:
    """Writes and reads the audit log of a store. ``clock`` returns Unix seconds."""

    def __init__(self, log: AuditLog, *, clock: Callable[[], float], ids: Ids) -> None:
        self._audit_log = log
        self._clock = clock
        self._ids = ids

    async def record(
        self,
        type: str,
        target: str = "",
        *,
        key: str | None = None,
        tenant: str = "",
        address: str = "",
    ) -> None:
        """Append an action that has been performed. ``type``: the kind of action. ``target``: the
        name or id of the changed object. ``key``: name of the client's API key. ``tenant``: the
        tenant of the key. ``address``: IP address of the client. If the store does not answer, the
        method only logs an error, because it cannot undo the action."""
        record = AuditRecord(
            id=self._ids("audit"),
            at=int(self._clock()),
            type=type,
            target=_text(target),
            actor=_text(key or ""),
            actor_tenant=_text(tenant),
            address=_text(address),
        )
        try:
            await self._audit_log.add(record)
        except StoreError as error:
            _log.error(
                "an action is missing in the audit log", audit=record.id, error=error.message
            )

    async def list(self, query: AuditQuery) -> Page[AuditEvent]:
        """Return a page of the audit log. Raises ``InvalidRequest`` for an unknown cursor."""
        found = await self._audit_log.list(replace(query, limit=query.limit + 1))
        if found is None:
            raise InvalidRequest(f"Event with id '{query.after}' not found.", param="after")
        events = tuple(_shown(record) for record in found[: query.limit])
        return page_of(events, has_more=len(found) > query.limit)


def _shown(record: AuditRecord) -> AuditEvent:
    actor = AuditActor(
        key=record.actor or None,
        tenant=record.actor_tenant or None,
        address=record.address or None,
    )
    return AuditEvent(
        id=record.id,
        type=record.type,
        effective_at=record.at,
        target=record.target or None,
        actor=actor,
    )


def _text(name: str) -> str:
    """Return a name as the audit log stores it: truncated to 256 characters, and with U+0000
    replaced."""
    return name[:256].replace("\0", "\ufffd")
