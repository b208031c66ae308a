"""The JSON types of the events in the audit log. They are an extension of OpenAI's API."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class AuditActor(Struct, frozen=True, kw_only=True):
    """Who performed an administrative action.

    ``key``: the name of the API key. It is null if no key was used, for example by a command that
    opens the store itself. ``address``: the client's address.
    """

    key: str | None
    tenant: str | None
    address: str | None


class AuditEvent(Struct, frozen=True, kw_only=True):
    """An administrative action in the audit log. ``effective_at``: Unix seconds. ``target``: the
    name or id of the changed object."""

    object: Literal["antiphon.audit_event"] = "antiphon.audit_event"
    id: str
    type: str
    effective_at: int
    target: str | None
    actor: AuditActor
