"""``POST /v1/responses/compact``: a run whose result is a shorter conversation."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import json_reply
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import Operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.wire.parsing.requests import parse_compact_request
from antiphon.wire.request import CompactRequest
from antiphon.wire.response import CompactedResponse

from .responses import record_outcome

__all__ = ["CompactEndpoint"]


class CompactEndpoint:
    """``POST /v1/responses/compact`` as an ASGI app. If the client disconnects, the compaction is
    cancelled."""

    operation = Operation(
        id="compactResponse",
        summary="Compact a conversation.",
        body=CompactRequest,
        answer=CompactedResponse,
        errors=(404, 409, 502),
    )

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        request = parse_compact_request(body, self._deps.limits.body)
        timing = RunTiming(context.started, self._deps.clock)
        async with CancelOnDisconnect(scope, receive), self._deps.slot(context):
            compaction = await self._deps.service.compact(
                context.tenant, request, client=context.client
            )
            run = compaction.run
            context.model, context.response_id = run.response.model, run.id
            try:
                response = await run.drive()
            finally:
                record_outcome(context, timing, run, self._deps.metrics, self._deps.clock())
        failed = response.status == "failed"
        reply = failed_response_reply(response) if failed else json_reply(compaction.result)
        await reply(scope, receive, send)
