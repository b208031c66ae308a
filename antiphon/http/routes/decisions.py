"""The endpoint ``POST /v1/decisions``, which answers questions about a shared input with
probabilities. Its model calls are runs like those of other endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request

from antiphon.compat.decisions import (
    DecisionBody,
    DecisionList,
    DecisionsRequest,
    make_decisions,
    parse_decisions,
)
from antiphon.errors import RequestError, RunError
from antiphon.http.endpoint_context import EndpointDependencies, with_trace
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import failed_response_reply
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.support.tasks import run_together
from antiphon.wire.response import Response

from .completions import total_usage
from .responses import record_outcome

#: Number of questions that are asked at the same time.
_CONCURRENCY = 4


class DecisionRoutes:
    """The route ``/v1/decisions``. If the client disconnects, the request is cancelled."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps

    @operation(
        "POST /v1/decisions",
        "createDecision",
        body=DecisionBody,
        answer=DecisionList,
        errors=(404, 502),
    )
    async def create(self, request: Request) -> Reply:
        """Answer questions about an input with probabilities."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._deps.limits, parse_decisions)
        responses: dict[int, Response] = {}
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
            try:
                # The first call computes the shared input. The others find it in the prefix cache.
                await self._ask(context, parsed, iter((0,)), responses)
                rest = iter(range(1, len(parsed.requests)))
                await run_together(
                    self._ask(context, parsed, rest, responses) for _ in range(_CONCURRENCY)
                )
            except (RequestError, RunError) as error:
                parsed.paths.translate(error)
                raise
        ordered = [responses[at] for at in sorted(responses)]
        failed = next((each for each in ordered if each.status == "failed"), None)
        context.usage = total_usage(ordered)
        if failed is not None:
            return failed_response_reply(failed)
        return json_reply(make_decisions(parsed, ordered, context.usage))

    async def _ask(
        self,
        context: RequestContext,
        request: DecisionsRequest,
        numbers: Iterator[int],
        responses: dict[int, Response],
    ) -> None:
        """Execute the requests with these numbers one after the other. Stop after a failure."""
        for number in numbers:
            if any(each.status == "failed" for each in responses.values()):
                return
            create = with_trace(request.requests[number], context.span.headers)
            run = await self._deps.service.create(context.tenant, create, client=context.client)
            context.model, context.response_id = run.response.model, run.id
            timing = RunTiming(context.started, self._deps.clock)
            try:
                await run.drive(None)
            finally:
                record_outcome(context, timing, run, self._deps.metrics, self._deps.clock())
            responses[number] = run.response
