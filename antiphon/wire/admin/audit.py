"""Events of the audit log: an extension of the API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["AuditActor", "AuditEvent"]


class AuditActor(Struct, frozen=True, kw_only=True):
    """Who did something. ``key``: the name of the API key; None without one, as for a command that
    opens the store itself. ``address``: of the client."""

    key: str | None
    tenant: str | None
    address: str | None


class AuditEvent(Struct, frozen=True, kw_only=True):
    """An administrative act. ``effective_at``: unix seconds. ``target``: the name or id of what was
    changed."""

    object: Literal["antiphon.audit_event"] = "antiphon.audit_event"
    id: str
    type: str
    effective_at: int
    target: str | None
    actor: AuditActor
