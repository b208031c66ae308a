"""The endpoint ``POST /v1/decisions``, which answers questions about a shared input with
probabilities. Its model calls are runs like those of other endpoints."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request

from antiphon.compat.decisions import (
    DecisionBody,
    DecisionList,
    DecisionsRequest,
    first_tokens,
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
from antiphon.wire.request import CreateResponse
from antiphon.wire.response import Response, Usage, sum_usage

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
        asking = _Asking(self._deps, context, parsed)
        async with CancelOnDisconnect(request.scope, request.receive), self._deps.slot(context):
            try:
                await asking.ask_all()
            except (RequestError, RunError) as error:
                parsed.paths.translate(error)
                raise
        context.usage = usage = sum_usage(each.usage or Usage() for each in asking.responses)
        if asking.failed is not None:
            return failed_response_reply(asking.failed)
        shares = [each.shares for each in asking.options]
        return json_reply(make_decisions(parsed, shares, asking.responses[0].model, usage))


class _Asking:
    """The model calls of one request. Stops after a failure (``failed``)."""

    def __init__(
        self, deps: EndpointDependencies, context: RequestContext, request: DecisionsRequest
    ) -> None:
        self._deps, self._context, self._request = deps, context, request
        self.options = [request.options(number) for number in range(len(request.requests))]
        self.responses: list[Response] = []
        self.failed: Response | None = None

    async def ask_all(self) -> None:
        """Ask all questions. The first call computes the shared input. The others find it in the
        prefix cache."""
        numbers = iter(range(len(self._request.questions)))
        await self._ask(iter((next(numbers),)))
        await run_together(self._ask(numbers) for _ in range(_CONCURRENCY))

    async def _ask(self, questions: Iterator[int]) -> None:
        """Ask the questions with these numbers one after the other, each in both orders of its
        options: the second order finds the text before the options in the prefix cache."""
        for question in questions:
            for number in (2 * question, 2 * question + 1):
                options = self.options[number]
                while (beginning := options.beginning) is not None:
                    if self.failed is not None:
                        return
                    options.feed(await self._first_tokens(self._request.after(number, beginning)))

    async def _first_tokens(self, request: CreateResponse) -> dict[str, float]:
        context, deps = self._context, self._deps
        create = with_trace(request, context.span.headers)
        run = await deps.service.create(context.tenant, create, client=context.client)
        context.model, context.response_id = run.response.model, run.id
        timing = RunTiming(context.started, deps.clock)
        try:
            await run.drive(None)
        finally:
            record_outcome(context, timing, run, deps.metrics, deps.clock())
        self.responses.append(run.response)
        if run.response.status == "failed":
            self.failed = run.response
        return first_tokens(run.response)
