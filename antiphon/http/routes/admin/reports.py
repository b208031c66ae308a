"""Endpoints that show the settings and the tools of the server, and the usage of a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import Permission, operation
from antiphon.wire.admin.server_info import SettingList, ToolList
from antiphon.wire.admin.usage import RequestUsage, UsageReport

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_ALLOWED = Permission(("operator", "auditor"), "see the settings")


class SettingRoutes:
    """The route ``/antiphon/settings``."""

    def __init__(self, settings: SettingList) -> None:
        self._settings = settings

    @operation("GET /antiphon/settings", "listSettings", permission=_ALLOWED)
    async def list(self, request: Request) -> SettingList:
        """List the settings with their origins, without secrets."""
        return self._settings


class ToolRoutes:
    """The route ``/antiphon/tools``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @operation("GET /antiphon/tools", "listTools")
    async def list(self, request: Request) -> ToolList:
        """List the server-side tools. For a tool that does not work now, the list gives the
        reason."""
        return ToolList(data=self._service.tools())


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
