"""``GET /antiphon/audit``: operators read the audit log."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from starlette.requests import Request

from antiphon.http.middleware.auth import AuthConfig, check_role
from antiphon.http.openapi.operation import operation
from antiphon.http.requests.query import PAGE_PARAMS, Query, QueryParam
from antiphon.resources.admin.audit import AuditQuery, AuditTrail
from antiphon.wire.admin.audit import AuditEvent
from antiphon.wire.pagination import Page

_Seconds = Annotated[int, Meta(ge=0)]
_PARAMS = (
    *(each for each in PAGE_PARAMS if each.name != "before"),
    QueryParam(name="type", type=str, description="Only acts of this type."),
    QueryParam(name="key", type=str, description="Only acts with this API key, by its name."),
    QueryParam(
        name="target", type=str, description="Only acts on the object with this name or id."
    ),
    QueryParam(name="start_time", type=_Seconds, description="Begin in unix seconds."),
    QueryParam(name="end_time", type=_Seconds, description="End in unix seconds, not included."),
)


class AuditRoutes:
    """The route of the audit log."""

    def __init__(self, trail: AuditTrail, access: AuthConfig) -> None:
        self._trail = trail
        self._access = access

    @operation("GET /antiphon/audit", "listAuditEvents", query=_PARAMS, errors=(400, 403))
    async def list(self, request: Request) -> Page[AuditEvent]:
        """Return a page of the administrative actions."""
        check_role(request.scope, self._access, "operator", "auditor", action="read the audit log")
        query = Query(request.scope)
        page = AuditQuery(
            type=query.value("type"),
            actor=query.value("key"),
            target=query.value("target"),
            start=query.number("start_time", low=0),
            end=query.number("end_time", low=0),
            after=query.value("after"),
            newest_first=query.order() == "desc",
            limit=query.limit(),
        )
        return await self._trail.list(page)
