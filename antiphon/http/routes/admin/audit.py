"""``GET /antiphon/audit``: operators read the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.http.openapi.operation import Permission, operation
from antiphon.http.requests.query import read_query
from antiphon.resources.admin.audit import AuditQuery, AuditTrail
from antiphon.wire.admin.audit import AuditEvent
from antiphon.wire.cursors import PageLimit, PageOrder, PageStart
from antiphon.wire.pagination import Page

_Seconds = Annotated[int, Meta(ge=0)]
_ALLOWED = Permission(("operator", "auditor"), "read the audit log")


class AuditListing(Struct, frozen=True, kw_only=True):
    limit: PageLimit = 20
    order: PageOrder = "desc"
    after: PageStart = None
    type: Annotated[str | None, Meta(description="Only acts of this type.")] = None
    key: Annotated[str | None, Meta(description="Only acts with this API key, by its name.")] = None
    target: Annotated[
        str | None, Meta(description="Only acts on the object with this name or id.")
    ] = None
    start_time: Annotated[_Seconds | None, Meta(description="Begin in unix seconds.")] = None
    end_time: Annotated[_Seconds | None, Meta(description="End in unix seconds, not included.")] = (
        None
    )


class AuditRoutes:
    """The route of the audit log."""

    def __init__(self, trail: AuditTrail) -> None:
        self._trail = trail

    @operation("GET /antiphon/audit", "listAuditEvents", query=AuditListing, permission=_ALLOWED)
    async def list(self, request: Request) -> Page[AuditEvent]:
        """Return a page of the administrative actions."""
        query = read_query(request, AuditListing)
        page = AuditQuery(
            type=query.type,
            actor=query.key,
            target=query.target,
            start=query.start_time,
            end=query.end_time,
            after=query.after,
            newest_first=query.order == "desc",
            limit=query.limit,
        )
        return await self._trail.list(page)
