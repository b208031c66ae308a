"""Endpoints for monitoring: liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.errors import DISK_ERROR, DISK_FULL, READ_ONLY
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import Metrics
from antiphon.http.openapi.operation import operation
from antiphon.wire.admin.server_info import Health, ProcessHealth, Readiness, UnreadyReason

if TYPE_CHECKING:
    from antiphon.runs.service import Service

#: Returns the state of the processes of a server with several workers.
ReadProcesses = Callable[[], Awaitable[tuple[ProcessHealth, ...]]]
_REASONS: Mapping[str, UnreadyReason] = {
    DISK_FULL: "disk_full",
    READ_ONLY: "read_only",
    DISK_ERROR: "disk_error",
}


class HealthRoutes:
    """Routes ``/health``, ``/ready`` and ``/metrics``. ``processes`` reads the state of the
    server's processes; None if there is only one process."""

    def __init__(
        self, service: Service, metrics: Metrics, processes: ReadProcesses | None = None
    ) -> None:
        self._service = service
        self._metrics = metrics
        self._processes = processes

    @operation("GET /health", "getHealth", security="open")
    async def health(self, request: Request) -> Health:
        """Return 200 while the event loop runs. On a server with several processes, the body
        contains the state of each process."""
        if self._processes is None:
            return Health()
        return Health(processes=await self._processes())

    @operation(
        "GET /ready",
        "getReadiness",
        answer=Readiness,
        other_responses={503: Readiness},
        security="open",
    )
    async def ready(self, request: Request) -> Reply:
        """Return 200 if the server accepts new work and its database is writable. Otherwise return
        503."""
        if not self._service.is_ready:
            return json_reply(Readiness(status="not_ready", reason="stopping"), 503)
        if not await self._service.store_health.is_writable():
            reason = _REASONS.get(self._service.store_health.cause, "store")
            reply = Readiness(status="not_ready", reason=reason)
            return json_reply(reply, 503)
        return json_reply(Readiness(status="ready"))

    @operation("GET /metrics", "getMetrics", media_type="text/plain", security="metrics")
    async def metrics(self, request: Request) -> Reply:
        """Return the metrics in the text format that the client accepts."""
        content, media_type = await self._metrics.exposition(request.headers.get("accept", ""))
        return Reply(content, media_type=media_type)
