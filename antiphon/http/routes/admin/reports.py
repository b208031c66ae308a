"""Endpoints that show the settings, the tools and the audit log of the server, and the usage of a
tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import UNSET, Meta, Struct
from starlette.requests import Request

from antiphon.errors import Forbidden
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import HeaderParam, Permission, operation
from antiphon.http.requests.query import read_query
from antiphon.limits.clients import Client
from antiphon.resources.admin.audit import AuditQuery, AuditTrail
from antiphon.runs.request.tool_selection import list_server_tools, list_tools
from antiphon.wire.admin.audit import AuditEvent
from antiphon.wire.admin.server_info import McpServerTools, SettingList, ToolEntry, ToolList
from antiphon.wire.admin.usage import RequestUsage, UsageReport
from antiphon.wire.cursors import PageLimit, PageOrder, PageStart
from antiphon.wire.pagination import Page
from antiphon.wire.tools import Mcp

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_MAY_SEE_SETTINGS = Permission(("operator", "auditor"), "see the settings")
_MCP_TOKEN = HeaderParam(
    name="MCP-Authorization",
    description="An access token for the MCP server, in place of the credentials of the settings.",
)


class SettingRoutes:
    """The route ``/antiphon/settings``."""

    def __init__(self, settings: SettingList) -> None:
        self._settings = settings

    @operation("GET /antiphon/settings", "listSettings", permission=_MAY_SEE_SETTINGS)
    async def list(self, request: Request) -> SettingList:
        """List the settings with their origins, without secrets."""
        return self._settings


class ToolRoutes:
    """The routes that list tools."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @operation("GET /antiphon/tools", "listTools")
    async def list(self, request: Request) -> ToolList:
        """List the server-side tools. For a tool that does not work now, or that the client may not
        use, the list gives the reason."""
        client = request_context(request.scope).client
        return ToolList(
            data=tuple(_as_seen_by(client, tool) for tool in list_tools(self._service.providers))
        )

    @operation(
        "GET /antiphon/mcp-servers/{label}/tools",
        "listMcpServerTools",
        headers=(_MCP_TOKEN,),
        errors=(403, 424),
    )
    async def list_of_mcp_server(self, request: Request) -> McpServerTools:
        """Ask an MCP server that the operator has configured for its tools, which also tests the
        connection."""
        context = request_context(request.scope)
        context.client.check_any_tool("mcp")
        tool = Mcp(
            server_label=request.path_params["label"],
            authorization=request.headers.get(_MCP_TOKEN.name, UNSET),
        )
        return McpServerTools(
            data=await list_server_tools(self._service.providers, tool, context.tenant)
        )


def _as_seen_by(client: Client, tool: ToolEntry) -> ToolEntry:
    try:
        client.check_any_tool(tool.type)
    except Forbidden as error:
        return ToolEntry(type=tool.type, available=False, reason=error.message)
    return tool


class UsageRoutes:
    """The route ``/antiphon/usage``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation("GET /antiphon/usage", "getUsage")
    async def retrieve(self, request: Request) -> UsageReport:
        """Return the usage and the limits of the tenant to which the API key belongs."""
        tenant = request_context(request.scope).tenant
        storage, background_runs = await self._deps.service.usages.read(tenant)
        admission = self._deps.admission
        report = UsageReport(
            tenant=tenant,
            storage=storage,
            background_runs=background_runs,
            requests=RequestUsage(
                in_progress=admission.running_of(tenant),
                queued=admission.waiting_of(tenant),
                limit=self._deps.limits.max_requests_per_tenant,
            ),
        )
        return report


_Seconds = Annotated[int, Meta(ge=0)]
_MAY_AUDIT = Permission(("operator", "auditor"), "read the audit log")


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

    @operation("GET /antiphon/audit", "listAuditEvents", query=AuditListing, permission=_MAY_AUDIT)
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
