"""The endpoint that shows a client the usage and the quotas of its tenant."""

from __future__ import annotations

from starlette.requests import Request

from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.wire.admin.usage import RequestUsage, UsageReport


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
