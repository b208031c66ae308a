"""``/v1/responses``: requests become calls of the service, and runs become answers.

``create`` drives its run, streamed or not, and the client's departure ends both; a background run
goes on without it, and so does one with a key to find it by. It knows no models, stores or tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import InvalidRequest
from antiphon.http.endpoint_context import EndpointContext
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import Metrics, Observed
from antiphon.http.middleware.auth import Limits
from antiphon.http.middleware.errors import failure_reply
from antiphon.http.middleware.request_context import RequestContext, exchange_of, trace_of
from antiphon.http.requests import body as bodies
from antiphon.http.requests import idempotency as repeats
from antiphon.http.requests.query import Query
from antiphon.http.streaming import sse
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.keepalive import KeepaliveTimer
from antiphon.http.streaming.response import Stream
from antiphon.runs.execution.run import EventSink
from antiphon.wire.events import Event, Keepalive
from antiphon.wire.parsing.requests import create_response, input_tokens
from antiphon.wire.request import INCLUDES, CreateResponse

if TYPE_CHECKING:
    from antiphon.runs.execution.run import Run
    from antiphon.runs.service import Service

__all__ = ["IGNORED_TOOLS", "Create", "Responses", "StoredEventStream", "record_outcome"]

#: Names the hosted tools a request offered that nobody here runs: the model never saw them.
IGNORED_TOOLS = "x-antiphon-ignored-tools"


class Create:
    """``POST /v1/responses``: the whole life of a foreground run, as an ASGI app."""

    def __init__(self, rim: EndpointContext) -> None:
        self._rim = rim

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        body = await bodies.read(scope, receive, self._rim.limits.max_body_bytes)
        request = create_response(body, self._rim.limits.body)
        if trace := trace_of(scope):
            request = replace(request, trace=trace)
        response_id = repeats.response_id(scope, exchange.tenant, body)
        if request.background or response_id is not None:
            return await self._enqueue(request, response_id, scope, receive, send)
        observed = Observed(exchange.started, self._rim.clock)
        stream = Stream(scope, send)
        async with CancelOnDisconnect(scope, receive), self._rim.gate.slot(exchange.tenant):
            run = await self._rim.service.create(exchange.tenant, request)
            exchange.model, exchange.response_id = run.response.model, run.id
            told = _Told(run, stream, observed)
            try:
                await (asyncio.create_task(run.drive(told)) if request.stream else run.drive())
            finally:
                record_outcome(exchange, observed, run, self._rim.metrics, self._rim.clock())
        if request.stream:
            await stream.end(told.last)
        else:
            await _answer(run)(scope, receive, send)

    async def _enqueue(
        self,
        request: CreateResponse,
        response_id: str | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """A run that goes on whether somebody listens or not."""
        exchange = exchange_of(scope)
        queued = await self._rim.service.enqueue(exchange.tenant, request, response_id)
        response, headers = queued.response, _ignored(queued.ignored_tools)
        if not queued.created:
            headers.append(repeats.HEADER)
        exchange.model, exchange.response_id = response.model, response.id
        if request.stream:
            if not queued.created:
                await self._rim.service.event_logs.check_available(exchange.tenant, response.id)
            followed = StoredEventStream(
                self._rim.service, exchange.tenant, response.id, -1, headers
            )
            return await followed(scope, receive, send)
        if not request.background:
            async with CancelOnDisconnect(scope, receive):
                await self._rim.service.event_logs.wait(exchange.tenant, response.id)
                response = await self._rim.service.retrieve(exchange.tenant, response.id)
            exchange.usage = response.usage
        reply = failure_reply(response) if response.status == "failed" else json_reply(response)
        reply.raw_headers.extend(headers)
        await reply(scope, receive, send)


def record_outcome(
    exchange: RequestContext, observed: Observed, run: Run, metrics: Metrics, now: float
) -> None:
    """The run of this exchange is over, or was given up."""
    exchange.usage = run.response.usage
    if run.response.status in ("in_progress", "cancelled"):
        metrics.abandoned(run.response.model)
    else:
        metrics.ended(observed, run.response, run.event_count, now)


class _Told(EventSink):
    """A run on its way to the reader who drives it: each batch in one write."""

    def __init__(self, run: Run, stream: Stream, observed: Observed) -> None:
        self._run = run
        self._stream = stream
        self._observed = observed
        #: What is left to be sent, with the end of the stream.
        self.last = b""

    @property
    def has_sent(self) -> bool:  # type: ignore[override]
        return self._stream.begun

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        if self._observed.first is None:
            return self._begin(events)
        return self._stream.write(sse.frames(events))

    async def end(self, events: tuple[Event, ...], stored: Any) -> None:
        if self.has_sent:
            self.last = sse.frames(events)
        else:
            await super().end(events, stored)

    async def _begin(self, events: tuple[Event, ...]) -> None:
        """Up to the first token."""
        if not self.has_sent:
            await self._stream.begin(_ignored(self._run.ignored_tools))
        self._observed.saw(events)
        if (rest := self._stream.write(sse.frames(events))) is not None:
            await rest


class StoredEventStream:
    """The stream of a background run, from the event after number ``after`` on, as an ASGI app. It
    begins once the run is known to be there."""

    def __init__(
        self,
        service: Service,
        tenant: str,
        response_id: str,
        after: int,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._batches = service.event_logs.follow(tenant, response_id, after)
        self._headers = headers
        self._keepalive_s = service.keepalive_s
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = Stream(scope, send)
        async with CancelOnDisconnect(scope, receive), aclosing(self._batches) as batches:
            await stream.begin(self._headers)
            with KeepaliveTimer(self._keepalive_s, self._keepalive(stream)) as silence:
                async for lines in batches:
                    self._after += len(lines)
                    async with silence.broken():
                        if (rest := stream.write(sse.framed(lines))) is not None:
                            await rest
        await stream.end()

    def _keepalive(self, stream: Stream) -> Callable[[], Awaitable[None]]:
        """This reader's own: the log of the run has none. It repeats the last number, so that a
        reader that comes back misses nothing."""

        async def say() -> None:
            event = Keepalive(sequence_number=max(0, self._after))
            if (rest := stream.write(sse.frames((event,)))) is not None:
                await rest

        return say


def _answer(run: Run) -> Reply:
    """The answer of a request that is not streamed."""
    reply = (
        failure_reply(run.response) if run.response.status == "failed" else json_reply(run.response)
    )
    reply.raw_headers.extend(_ignored(run.ignored_tools))
    return reply


def _ignored(tools: Sequence[str]) -> list[tuple[bytes, bytes]]:
    return [(IGNORED_TOOLS.encode(), ", ".join(tools).encode())] if tools else []


class Responses:
    """What can be asked about responses that are, and about requests that are not to be run."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    async def retrieve(self, request: Request) -> ASGIApp:
        """A stored response, with all that it was created to include; or the stream of a
        background response, from where the reader left it."""
        query = Query(request.scope)
        query.many("include", INCLUDES)
        query.flag("include_obfuscation")
        streamed = query.flag("stream")
        after = query.number("starting_after", low=0)
        if not streamed and after is not None:
            raise InvalidRequest(
                "starting_after is only allowed when stream is true.", param="starting_after"
            )
        tenant, response_id = _asked(request)
        if not streamed:
            return json_reply(await self._service.retrieve(tenant, response_id))
        await self._service.check_followable(tenant, response_id)
        return StoredEventStream(self._service, tenant, response_id, -1 if after is None else after)

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
        query = Query(request.scope)
        query.many("include", INCLUDES)
        return json_reply(await self._service.input_items(*_asked(request), query.cut()))

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
