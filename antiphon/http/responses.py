"""``/v1/responses``: requests become calls of the service, and runs become answers.

``create`` is a reader of its run, streamed or not; the client's departure is the reader's. It knows
no models, stores or tools.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.errors import InvalidRequest
from antiphon.wire.decode import create_response, input_tokens
from antiphon.wire.request import INCLUDES
from antiphon.wire.response import Response

from . import bodies, sse
from .conversations import cut_of
from .errors import failure_reply
from .exchange import Exchange, exchange_of
from .gate import Gate
from .guard import Limits
from .metrics import Metrics, Observed
from .presence import Presence
from .queries import Query
from .replies import Reply, json_reply

if TYPE_CHECKING:
    from antiphon.runs.run import Run
    from antiphon.runs.service import Service

__all__ = ["IGNORED_TOOLS", "Create", "Responses"]

#: Names the hosted tools a request offered that nobody here runs: the model never saw them.
IGNORED_TOOLS = "x-antiphon-ignored-tools"


class Create:
    """``POST /v1/responses``: the whole life of a foreground run, as an ASGI app."""

    def __init__(
        self,
        service: Service,
        gate: Gate,
        metrics: Metrics,
        clock: Callable[[], float],
        limits: Limits,
    ) -> None:
        self._service = service
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._limits.max_body_bytes)
        request = create_response(body, self._limits.body)
        observed = Observed(exchange.started, self._clock)
        async with Presence(receive), self._gate.slot(exchange.tenant):
            run = await self._service.create(exchange.tenant, request, request_id=exchange.id)
            exchange.model, exchange.response_id = run.response.model, run.id
            try:
                await (_stream(run, send, observed) if request.stream else run.result())
            finally:
                self._ended(exchange, observed, run.response)
        if request.stream:
            await send({"type": "http.response.body", "body": sse.DONE})
        else:
            await _answer(run)(scope, receive, send)

    def _ended(self, exchange: Exchange, observed: Observed, response: Response) -> None:
        exchange.usage = response.usage
        if response.status == "in_progress":
            self._metrics.abandoned(response.model)
        else:
            self._metrics.ended(observed, response, self._clock())


async def _stream(run: Run, send: Send, observed: Observed) -> None:
    """All of the stream but its last line, each batch in one write."""
    begun = False
    async with aclosing(run.follow()) as batches:
        async for batch in batches:
            if not begun:
                begun = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [*sse.HEADERS, *_ignored(run)],
                    }
                )
            observed.saw(batch)
            await send({"type": "http.response.body", "body": sse.frames(batch), "more_body": True})


def _answer(run: Run) -> Reply:
    """The answer of a request that is not streamed."""
    reply = (
        failure_reply(run.response) if run.response.status == "failed" else json_reply(run.response)
    )
    reply.raw_headers.extend(_ignored(run))
    return reply


def _ignored(run: Run) -> list[tuple[bytes, bytes]]:
    if not run.ignored_tools:
        return []
    return [(IGNORED_TOOLS.encode(), ", ".join(run.ignored_tools).encode())]


class Responses:
    """What can be asked about responses that are, and about requests that are not to be run."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    async def retrieve(self, request: Request) -> Reply:
        """A stored response, with all that it was created to include."""
        query = Query(request.scope)
        query.many("include", INCLUDES)
        query.flag("include_obfuscation")
        streamed = query.flag("stream")
        after = query.number("starting_after", low=0)
        response = await self._service.retrieve(*_asked(request))
        if streamed:
            raise InvalidRequest(
                "Only responses created with background=true and stream=true can be streamed "
                "again. Retrieve this one without stream.",
                param="stream",
            )
        if after is not None:
            raise InvalidRequest(
                "starting_after is only allowed when stream is true.", param="starting_after"
            )
        return json_reply(response)

    async def delete(self, request: Request) -> Reply:
        """Forgotten at once."""
        tenant, response_id = _asked(request)
        await self._service.delete(tenant, response_id)
        return json_reply({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Reply:
        """The response as it stands after."""
        return json_reply(await self._service.cancel(*_asked(request)))

    async def input_items(self, request: Request) -> Reply:
        """A page of what a response was generated from."""
        page = await self._service.input_items(*_asked(request), cut_of(request))
        return json_reply(page)

    async def count(self, request: Request) -> Reply:
        """How many tokens ``create`` would see."""
        exchange = exchange_of(request.scope)
        body = await bodies.read(request.scope, request.receive, self._limits.max_body_bytes)
        asked = input_tokens(body, self._limits.body)
        count = await self._service.count(exchange.tenant, asked)
        return json_reply({"object": "response.input_tokens", "input_tokens": count})


def _asked(request: Request) -> tuple[str, str]:
    """Tenant and response id of a request about one response."""
    exchange = exchange_of(request.scope)
    exchange.response_id = request.path_params["response_id"]
    return exchange.tenant, exchange.response_id
