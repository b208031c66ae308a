"""Endpoints of ``/v1/responses``.

A foreground run, streamed or not, is cancelled when its client disconnects. A background run, and a
run with an Idempotency-Key, keeps running without the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import InvalidRequest, ServerStopped
from antiphon.http.auditor import Auditor
from antiphon.http.endpoint_context import EndpointDependencies, create_run, with_trace
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.metrics import Metrics, RunTiming
from antiphon.http.middleware.errors import error_reply, failed_response_reply
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import HeaderParam, Operation, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import idempotency as repeats
from antiphon.http.requests.query import Including, IncludingPage, read_query
from antiphon.http.streaming import sse
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.keepalive import KeepaliveTimer
from antiphon.http.streaming.response import EventStream
from antiphon.limits.requests import RequestLimits
from antiphon.runs.execution.run import EventSink
from antiphon.runs.service import ResponseQuery
from antiphon.tracing.responses import record_content, record_response
from antiphon.wire.cursors import PageLimit, PageOrder, PageStart
from antiphon.wire.events import Event, Keepalive, StreamEvent
from antiphon.wire.items import Item
from antiphon.wire.pagination import DeletedObject, InputTokensCount, Page
from antiphon.wire.parsing.ids import check_response_id
from antiphon.wire.parsing.requests import parse_create_response, parse_input_tokens_request
from antiphon.wire.parsing.steering import parse_steer
from antiphon.wire.request import CreateResponse, InputTokensRequest
from antiphon.wire.response import Response, ResponseStatus, encodable
from antiphon.wire.response_list import ResponseSummary, Transcript
from antiphon.wire.steering import SteeringSubmission, SteerRequest
from antiphon.wire.timeline import Timeline

if TYPE_CHECKING:
    from antiphon.runs.batches.line_runs import LineRun
    from antiphon.runs.execution.run import Run
    from antiphon.runs.service import Service

#: Response header with the hosted tools of the request that this server does not run. The model
#: never sees these tools.
IGNORED_TOOLS = "x-antiphon-ignored-tools"


class ResponseRetrieval(Including, frozen=True, kw_only=True):
    include_obfuscation: Annotated[
        bool,
        Meta(
            description="Pad the deltas of the stream, so that their sizes do not reveal the text."
        ),
    ] = False
    stream: Annotated[bool, Meta(description="Stream the events of a background response.")] = False
    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The sequence number after which the stream starts."),
    ] = None


_IDEMPOTENCY_KEY = HeaderParam(
    name="Idempotency-Key",
    description="A repeated request with the same key and body returns the first response.",
)

_VIEWS = "/antiphon/responses/{response_id}"
_RESPONSE = "/v1/responses/{response_id}"


class CreateEndpoint:
    """``POST /v1/responses`` as an ASGI app."""

    operation = Operation(
        route="POST /v1/responses",
        id="createResponse",
        summary="Create a response.",
        body=CreateResponse,
        answer=Response,
        events=StreamEvent,
        headers=(_IDEMPOTENCY_KEY,),
        response_headers=(IGNORED_TOOLS, repeats.REPLAYED_HEADER[0].decode()),
        errors=(404, 409, 424, 502),
    )

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps
        self._parse = partial(parse_create_response, shapes=deps.service.shapes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        body = await bodies.read(scope, receive, self._deps.limits.max_body_bytes)
        parsed = await bodies.parsed(body, self._deps.limits, self._parse)
        request = with_trace(parsed, context.span.headers)
        response_id = repeats.response_id(scope, context.tenant, body)
        del body  # it may be large, and the run may take long
        if (request.background or response_id is not None) and not request.only_prewarms:
            return await self._enqueue(request, response_id, scope, receive, send)
        timing = RunTiming(context.started, self._deps.clock)
        async with CancelOnDisconnect(scope, receive), self._deps.slot(context):
            run = await create_run(self._deps.service, context, request)
            context.model, context.response_id = run.response.model, run.id
            context.runs = (run,)
            stream = EventStream(scope, send)
            pads = request.pads_deltas
            sink = _ClientSink(run, stream, timing, pads=pads) if request.stream else None
            try:
                await run.drive(sink)
            finally:
                record_outcome(context, timing, run, self._deps.metrics, self._deps.clock())
                record_content(self._deps.tracer, context.span, request, run.response)
        if sink is None:
            await _answer(run)(scope, receive, send)
        else:
            await sink.end_stream()

    async def _enqueue(
        self,
        request: CreateResponse,
        response_id: str | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Start a run, and answer the request. The run continues even if the client disconnects.
        ``response_id``: the id from the Idempotency-Key, or None.

        A streamed request gets the event stream. A background request gets the response as it is
        now. Any other request gets the final response.
        """
        context = request_context(scope)
        queued = await self._deps.service.enqueue(
            context.tenant, request, response_id, client=context.client
        )
        response, headers = queued.response, ignored_tools_headers(queued.ignored_tools)
        if not queued.created:
            headers.append(repeats.REPLAYED_HEADER)
        context.model, context.response_id = response.model, response.id
        if request.stream:
            if not queued.created:
                await self._deps.service.event_logs.check_available(context.tenant, response.id)
            event_stream = StoredEventStream(
                self._deps.service,
                context.tenant,
                response.id,
                -1,
                headers,
                pads=request.pads_deltas,
            )
            return await event_stream(scope, receive, send)
        if not request.background:
            async with CancelOnDisconnect(scope, receive):
                await self._deps.service.event_logs.wait(context.tenant, response.id)
                response = await self._deps.service.retrieve(context.tenant, response.id)
            context.usage = response.usage
        reply = (
            failed_response_reply(response) if response.status == "failed" else json_reply(response)
        )
        reply.raw_headers.extend(headers)
        await reply(scope, receive, send)


def record_outcome(
    context: RequestContext, timing: RunTiming, run: Run | LineRun, metrics: Metrics, now: float
) -> None:
    """Record the usage, the trace and the metrics of a run that ended or was abandoned by its
    client."""
    context.usage = run.response.usage
    record_response(context.span, run.response)
    metrics.record_outcome(timing, run.response, run.event_count, now)


class _ClientSink(EventSink):
    """Writes the events of a run to the client that started it. Each batch of events is sent in one
    write."""

    def __init__(
        self, run: Run | LineRun, stream: EventStream, timing: RunTiming, *, pads: bool = False
    ) -> None:
        self._run = run
        self._pads = pads
        self._stream = stream
        self._timing = timing
        #: Terminal events not yet sent; they are written together with the end of the stream.
        self._last = b""

    @property
    def has_sent(self) -> bool:  # type: ignore[override]
        return self._stream.has_started

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        if self._timing.first_token_at is None:
            self._timing.record_events(events)
            if not self._stream.has_started:
                return self._start(events)
        return self._stream.write(sse.frame_events(events, pads=self._pads))

    def write_comment(self) -> Awaitable[None] | None:
        return self._stream.write(sse.COMMENT) if self.has_sent else None

    async def end(self, events: tuple[Event, ...], stored: Any) -> None:
        if self.has_sent:
            self._last = sse.frame_events(events, pads=self._pads)
        else:
            await super().end(events, stored)

    async def end_stream(self) -> None:
        """Write the last events of the run, and ``[DONE]``, which ends the stream."""
        await self._stream.end(self._last)

    async def _start(self, events: tuple[Event, ...]) -> None:
        """Write the headers and the first events."""
        await self._stream.start(ignored_tools_headers(self._run.ignored_tools))
        if (rest := self._stream.write(sse.frame_events(events, pads=self._pads))) is not None:
            await rest


class StoredEventStream:
    """The event stream of a run that continues without its client, as an ASGI app. The stream
    contains the events with a sequence number greater than ``after``. ``pads``: whether deltas are
    padded.

    The caller must first check that the events are available. After the HTTP response has started,
    its status can no longer show an error.
    """

    def __init__(
        self,
        service: Service,
        tenant: str,
        response_id: str,
        after: int,
        headers: Sequence[tuple[bytes, bytes]] = (),
        *,
        pads: bool = False,
    ) -> None:
        self._pads = pads
        self._batches = service.event_logs.follow(tenant, response_id, after)
        self._headers = headers
        self._keepalive_s = service.keepalive_s
        self._keepalive_events = service.keepalive_events
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventStream(scope, send)
        async with CancelOnDisconnect(scope, receive), aclosing(self._batches) as batches:
            await stream.start(self._headers)
            with KeepaliveTimer(self._keepalive_s, self._keepalive(stream)) as keepalive:
                try:
                    async for lines in batches:
                        self._after += len(lines)
                        if self._pads:
                            lines = [sse.pad_delta(bytes(line)) for line in lines]
                        async with keepalive.sending():
                            for piece in sse.frame_pieces(lines):
                                if (rest := stream.write(piece)) is not None:
                                    await rest
                        del lines  # they may be as long as the response
                except ServerStopped:
                    async with keepalive.sending():
                        if (rest := stream.write(sse.resume_comment(self._after))) is not None:
                            await rest
                    raise
        await stream.end()

    def _keepalive(self, stream: EventStream) -> Callable[[], Awaitable[None]]:
        """Return a function that sends a keepalive to this reader.

        The event log contains no keepalives. The keepalive repeats the last sequence number, so a
        client that resumes misses no event. In two cases the keepalive is an SSE comment instead of
        an event:

        - before the first event, because clients reject a stream that begins with a keepalive
          event;
        - in the event format of Open Responses, which has no keepalive event.
        """
        first = self._after

        async def send_keepalive() -> None:
            keepalive = sse.COMMENT
            if self._keepalive_events and self._after > first:
                keepalive = sse.frame_events((Keepalive(sequence_number=self._after),))
            if (rest := stream.write(keepalive)) is not None:
                await rest

        return send_keepalive


def _answer(run: Run | LineRun) -> Reply:
    """Build the response to a request that is not streamed."""
    reply = (
        failed_response_reply(run.response)
        if run.response.status == "failed"
        else json_reply(encodable(run.response))
    )
    reply.raw_headers.extend(ignored_tools_headers(run.ignored_tools))
    return reply


def ignored_tools_headers(tools: Sequence[str]) -> list[tuple[bytes, bytes]]:
    return [(IGNORED_TOOLS.encode(), ", ".join(tools).encode())] if tools else []


class ResponseListing(Struct, frozen=True, kw_only=True):
    """The query parameters of the list of responses. OpenAI's dashboard has such a list; its public
    API does not."""

    limit: PageLimit = 20
    order: PageOrder = "desc"
    after: PageStart = None
    status: Annotated[
        ResponseStatus | None, Meta(description="Only responses with this status.")
    ] = None
    model: Annotated[str | None, Meta(description="Only responses of this model.")] = None
    tool: Annotated[
        str | None,
        Meta(
            description="Only responses that called this kind of tool, such as `web_search`,"
            " `function` or `mcp`."
        ),
    ] = None
    failed: Annotated[
        bool | None, Meta(description="Only responses with, or without, an error.")
    ] = None
    conversation: Annotated[
        str | None, Meta(description="Only responses of this conversation, by its id.")
    ] = None
    background: Annotated[
        bool | None, Meta(description="Only background, or foreground, responses.")
    ] = None
    previous_response_id: Annotated[
        str | None, Meta(description="Only responses that continue this one.")
    ] = None
    search: Annotated[
        str | None,
        Meta(
            description="Only responses whose previews contain this text, in upper or lower case."
        ),
    ] = None


class ResponseRoutes:
    """Endpoints that read or change existing responses, and the endpoint that counts a request's
    tokens."""

    def __init__(self, service: Service, limits: RequestLimits, auditor: Auditor) -> None:
        self._auditor = auditor
        self._service = service
        self._limits = limits

    @operation(
        "GET /v1/responses",
        "listResponses",
        query=ResponseListing,
        answer=Page[ResponseSummary],
        errors=(426,),
    )
    async def list(self, request: Request) -> Reply:
        """Return a page of the stored responses, without their contents.

        If no WebSocket library is installed, a WebSocket upgrade arrives here as a plain GET. The
        answer then has the status 426, which tells clients to use HTTP instead.
        """
        if request.headers.get("upgrade", "").lower() == "websocket":
            return error_reply(
                426,
                "This server does not support the WebSocket mode. Use POST /v1/responses.",
                code="websocket_not_supported",
                headers={"upgrade": "HTTP/1.1", "connection": "upgrade, close"},
            )
        query = read_query(request, ResponseListing)
        listing = ResponseQuery(
            status=query.status,
            model=query.model,
            tool=query.tool,
            failed=query.failed,
            conversation=query.conversation,
            background=query.background,
            previous_response_id=query.previous_response_id,
            text=query.search,
            newest_first=query.order == "desc",
            after=query.after,
            limit=query.limit,
        )
        context = request_context(request.scope)
        return json_reply(await self._service.list_responses(context.tenant, listing))

    @operation(
        f"GET {_RESPONSE}",
        "getResponse",
        query=ResponseRetrieval,
        answer=Response,
        events=StreamEvent,
    )
    async def retrieve(self, request: Request) -> ASGIApp:
        """Return a stored response, or resume the stream of a background response."""
        query = read_query(request, ResponseRetrieval)
        after = query.starting_after
        if not query.stream and after is not None:
            raise InvalidRequest(
                "starting_after is only allowed when stream is true.", param="starting_after"
            )
        tenant, response_id = _response_key(request)
        if not query.stream:
            return json_reply(await self._service.retrieve(tenant, response_id))
        await self._service.check_followable(tenant, response_id)
        after = -1 if after is None else after
        return StoredEventStream(
            self._service, tenant, response_id, after, pads=query.include_obfuscation
        )

    @operation(f"DELETE {_RESPONSE}", "deleteResponse")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a response."""
        tenant, response_id = _response_key(request)
        await self._service.delete(tenant, response_id)
        await self._auditor.record_operator(request.scope, "response.deleted", response_id)
        return DeletedObject(id=response_id, object="response")

    @operation(f"POST {_RESPONSE}/cancel", "cancelResponse")
    async def cancel(self, request: Request) -> Response:
        """Cancel a background response. Returns the response."""
        return await self._service.cancel(*_response_key(request))

    @operation(f"POST {_RESPONSE}/steer", "steerResponse", body=SteerRequest)
    async def steer(self, request: Request) -> SteeringSubmission:
        """Steer a background response that is in progress.

        The response ends early, and a further background response continues it with this input.
        """
        input = await bodies.parse(request, self._limits, parse_steer)
        return await self._service.steer(*_response_key(request), input)

    @operation(f"GET {_VIEWS}/transcript", "getTranscript")
    async def transcript(self, request: Request) -> Transcript:
        """Return, as text, the tokens that the model read and wrote up to the end of a response."""
        return await self._service.transcript(*_response_key(request))

    @operation(f"GET {_VIEWS}/timeline", "getTimeline")
    async def timeline(self, request: Request) -> Timeline:
        """Return the start and end times of a response and of its output items.

        The times of a response are unknown while it is in progress.
        """
        return await self._service.timeline(*_response_key(request))

    @operation(f"GET {_RESPONSE}/input_items", "listInputItems", query=IncludingPage)
    async def list_input_items(self, request: Request) -> Page[Item]:
        """Return a page of a response's input items."""
        params = read_query(request, IncludingPage)
        return await self._service.input_items(*_response_key(request), params)

    @operation(
        "POST /v1/responses/input_tokens",
        "getInputTokenCounts",
        body=InputTokensRequest,
        errors=(404, 502),
    )
    async def count_input_tokens(self, request: Request) -> InputTokensCount:
        """Count the input tokens of a request."""
        context = request_context(request.scope)
        parsed = await bodies.parse(request, self._limits, parse_input_tokens_request)
        count = await self._service.count(context.tenant, parsed, client=context.client)
        return InputTokensCount(input_tokens=count)


def _response_key(request: Request) -> tuple[str, str]:
    """Return the tenant and the response id of a request."""
    context = request_context(request.scope)
    context.response_id = check_response_id(request.path_params["response_id"], "response_id")
    return context.tenant, context.response_id
