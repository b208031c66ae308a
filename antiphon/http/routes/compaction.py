"""``POST /v1/responses/compact``: a run whose result is a shorter conversation."""

from __future__ import annotations

from starlette.requests import Request

from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.wire.parsing.requests import parse_compact_request
from antiphon.wire.request import CompactRequest
from antiphon.wire.response import CompactedResponse

from .responses import record_outcome


class CompactRoutes:
    """The route ``/v1/responses/compact``. If the client disconnects, the compaction is
    cancelled."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation(
        "POST /v1/responses/compact",
        "compactResponse",
        body=CompactRequest,
        answer=CompactedResponse,
        errors=(404, 409, 502),
    )
    async def compact(self, request: Request) -> Reply:
        """Compact a conversation."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._deps.limits, parse_compact_request)
        timing = RunTiming(context.started, self._deps.clock)
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
            compaction = await self._deps.service.compact(
                context.tenant, parsed, client=context.client
            )
            run = compaction.run
            context.model, context.response_id = run.response.model, run.id
            try:
                response = await run.drive()
            finally:
                record_outcome(context, timing, run, self._deps.metrics, self._deps.clock())
        failed = response.status == "failed"
        return failed_response_reply(response) if failed else json_reply(compaction.result)
