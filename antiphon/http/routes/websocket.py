"""``/v1/responses`` as a WebSocket: each frame starts a run, and each event is sent as a frame.

Frames with the same ``stream_id`` form a lane. The runs of one lane are executed in order; several
lanes are executed in parallel. A connection keeps the latest response of each lane in memory, so
that a client can continue this response even if it is not stored. The ASGI server handles pings,
fragmentation and compression.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import UNSET
from starlette.types import Message, Receive, Scope, Send

from antiphon.errors import (
    UNEXPECTED,
    InvalidRequest,
    Overloaded,
    RequestError,
    RunError,
    StoreError,
    Unauthorized,
)
from antiphon.http.endpoint_context import EndpointDependencies, with_trace
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import status_of, type_of
from antiphon.http.middleware.request_context import (
    ClientDisconnected,
    RequestContext,
    request_context,
)
from antiphon.http.requests import body as bodies
from antiphon.http.streaming.sse import pad_delta
from antiphon.limits.refusals import limit_reached, server_is_busy
from antiphon.runs.execution.run import EventSink, Run
from antiphon.runs.execution.steering import already_completed
from antiphon.runs.history.session_chains import SessionChains
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import BackgroundTasks, running
from antiphon.tracing.base import Span
from antiphon.tracing.responses import record_content, record_response
from antiphon.wire.events import Error, Event, encodable_event
from antiphon.wire.parsing.websocket import (
    CreateFrame,
    FrameEnvelope,
    SteerFrame,
    read_envelope,
    read_frame,
)

from .lane_steering import LaneSteering, refused_steer

#: OpenAI's limits: concurrent runs, lanes, and seconds that a connection lasts.
_MAX_CONCURRENT_RUNS = 16
_MAX_LANES = 32
LIFETIME_S = 3600.0
#: Seconds between two checks that the client's API key is still valid.
_CHECK_S = 1.0
#: Code of a connection that is closed because of a policy (RFC 6455, section 7.4.1).
_POLICY_VIOLATION = 1008
#: Code of a connection whose client may try again later (registered at IANA).
_TRY_AGAIN_LATER = 1013
#: Seconds that a message waits for memory. Meanwhile, the client gets no pongs, for which many
#: clients wait 20 seconds.
_MEMORY_WAIT_S = 10.0
#: Frames that may wait for their turn, in all lanes together.
_MAX_QUEUED_FRAMES = 128
#: Responses whose lanes a connection knows.
_MAX_STEERABLE = 256
#: Code of a steering submission whose successor could not be created.
_NO_SUCCESSOR = "successor_creation_failed"

#: Span of one frame, below the span of the connection.
_FRAME_SPAN = "response.create"

_encode = msgspec.json.Encoder().encode


class WebSocketEndpoint:
    """``GET /v1/responses`` with an upgrade to a WebSocket, as an ASGI app that handles the whole
    connection."""

    def __init__(self, deps: EndpointDependencies, *, lifetime_s: float = LIFETIME_S) -> None:
        self.deps = deps
        self.lifetime_s = lifetime_s
        limits = deps.limits
        #: The memory for the latest responses of the lanes of all connections, in bytes.
        self.chain_memory = FairLimiter(
            limits.body_memory_bytes, max_per_tenant=limits.body_memory_per_tenant
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        await receive()  # websocket.connect
        connection = _Connection(self, context, send)
        scope.setdefault("extensions", {})[bodies.HOLD_MESSAGE] = connection.hold_memory
        await send({"type": "websocket.accept"})
        context.status = 101
        await connection.serve(receive)


class _Lane:
    """A lane: the WebSocket frames with one ``stream_id``, which are processed in order. ``queue``:
    the frames that wait. ``latest``: the id of the lane's latest response. ``steering``: the
    steering of the response that the lane has created last."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.queue: deque[FrameEnvelope] = deque()
        self.latest: str | None = None
        self.steering: LaneSteering | None = None


class _Connection:
    def __init__(self, endpoint: WebSocketEndpoint, context: RequestContext, send: Send) -> None:
        self._endpoint = endpoint
        self._context = context
        self._send = send
        self._lanes: dict[str | None, _Lane] = {}
        #: The lanes of the latest responses, by the ids of the responses.
        self._lane_of_response: dict[str, _Lane] = {}
        #: Tasks that process the frames of lanes, by lane.
        self._workers = BackgroundTasks("WebSocket lane")
        self._run_slots = asyncio.Semaphore(_MAX_CONCURRENT_RUNS)
        self._has_expired = False
        #: Bytes of the message that arrives, and of the frames that wait or are processed.
        self._arriving_bytes = self._frame_bytes = 0
        self.recent = SessionChains(endpoint.chain_memory, context.tenant)

    async def serve(self, receive: Receive) -> None:
        """Serve until the client disconnects or the connection's lifetime ends."""
        async with running(self._expire()), running(self._watch_access()):
            try:
                while (message := await receive())["type"] == "websocket.receive":
                    # An idle connection keeps no message, so none is in a variable here.
                    await self._take_message(message)
            except ClientDisconnected:
                pass
            except Overloaded as error:  # there is no memory for the message
                with suppress(ClientDisconnected):
                    await self.refuse(error, None)
                    await self._close(_TRY_AGAIN_LATER, error.message)
            finally:
                await self._workers.close()
                self.recent.clear()

    async def _take_message(self, message: Message) -> None:
        """Take the text out of a message of the server, and put it into the queue of its lane."""
        text = message.pop("text", None)
        content = None if text is None else text.encode()
        del text
        await self.hold_memory(len(content or b""))
        await self._enqueue_frame(content)
        self._arriving_bytes = 0
        self._give_memory_back()

    async def hold_memory(self, size: int) -> None:
        """Hold ``size`` bytes of memory for the message that arrives. Raises ``Overloaded`` if too
        little is free for too long."""
        self._arriving_bytes = size
        if (more := self._needed_memory() - self._context.held_memory) > 0:
            try:
                async with asyncio.timeout(_MEMORY_WAIT_S):
                    await self._context.hold_memory(more)
            except TimeoutError:
                what = "the memory for large messages is in use"
                raise server_is_busy(what, retry_after_s=int(_MEMORY_WAIT_S)) from None
        self._give_memory_back()

    def _needed_memory(self) -> int:
        """Return how much memory the frames of the connection need, of that for large bodies."""
        steering = sum(each.steering.input_bytes for each in self._lanes.values() if each.steering)
        size = self._arriving_bytes + self._frame_bytes + steering
        return size if size > bodies.SMALL_BYTES else 0

    def _give_memory_back(self) -> None:
        self._context.keep_memory(self._needed_memory())

    async def _enqueue_frame(self, content: bytes | None) -> None:
        """Put a frame into the queue of its lane. All frames with the same ``stream_id`` are in one
        lane.

        A frame of type ``response.steer`` is processed immediately instead. An invalid frame is
        immediately answered with an error event.
        """
        stream_id: str | None = None
        try:
            if content is None:
                raise InvalidRequest("Each frame must be a text frame with one JSON object.")
            limits = self._endpoint.deps.limits
            envelope = await bodies.parsed(content, limits, read_envelope)
            stream_id = envelope.stream_id
            if self._has_expired:
                raise _expired_error()
            if envelope.type == "response.steer":  # a queued frame would be processed too late
                return await self._steer(envelope)
            lane = self._lane(stream_id)
            if sum(len(each.queue) for each in self._lanes.values()) >= _MAX_QUEUED_FRAMES:
                raise limit_reached(f"{_MAX_QUEUED_FRAMES} frames are waiting on this connection")
        except RequestError as error:
            return await self.refuse(error, stream_id)
        lane.queue.append(envelope)
        self._frame_bytes += envelope.size
        self._workers.start_once(lane, partial(self._work, lane))

    def _lane(self, name: str | None) -> _Lane:
        if name not in self._lanes:
            if name is not None and len(self._lanes.keys() - {None}) >= _MAX_LANES:
                raise InvalidRequest(
                    "This WebSocket connection has reached its maximum number of distinct stream "
                    f"IDs ({_MAX_LANES}). Reuse an existing stream_id or open a new WebSocket "
                    "connection.",
                    param="stream_id",
                    code="websocket_stream_limit_reached",
                )
            self._lanes[name] = _Lane(name)
        return self._lanes[name]

    async def _work(self, lane: _Lane) -> None:
        """Process the waiting frames of a lane, in order. A lane is the WebSocket frames with one
        ``stream_id``."""
        try:
            while lane.queue:
                async with self._run_slots:
                    await self._process_next(lane)
                    await self._follow(lane)
        except ClientDisconnected:
            lane.queue.clear()

    async def _process_next(self, lane: _Lane) -> None:
        envelope = lane.queue.popleft()
        await self._process(lane, envelope)
        self._frame_bytes -= envelope.size
        self._give_memory_back()

    async def _process(self, lane: _Lane, envelope: FrameEnvelope) -> None:
        previous: str | None = None
        try:
            frame = await self._read(envelope)
            assert isinstance(frame, CreateFrame)
            previous = frame.request.previous_response_id
            await self._run(lane, frame)
        except RequestError as error:
            self.evict(lane, previous)
            await self.refuse(error, lane.name)
        except RunError as error:
            self.evict(lane, previous)
            status = status_of(error)
            kind = type_of(status, error.type)
            await self._send_error(
                status, kind, error.client_message, error.code, error.param, lane.name
            )
        except ClientDisconnected:
            raise
        except Exception:
            self._endpoint.deps.log.exception("unexpected error")
            self.evict(lane, previous)
            await self._send_error(500, "server_error", UNEXPECTED, "server_error", None, lane.name)

    async def _read(self, envelope: FrameEnvelope) -> CreateFrame | SteerFrame:
        limits = self._endpoint.deps.limits.body
        if envelope.is_costly:
            return await asyncio.to_thread(read_frame, envelope, limits)
        return read_frame(envelope, limits)

    async def _run(self, lane: _Lane, frame: CreateFrame) -> None:
        await self._context.check_access()
        await self._context.charge()
        parent = self._context.span.headers
        with self._endpoint.deps.tracer.start(_FRAME_SPAN, parent, kind="server") as span:
            await self._drive(lane, frame, span)

    async def _drive(self, lane: _Lane, frame: CreateFrame, span: Span) -> None:
        deps, tenant = self._endpoint.deps, self._context.tenant
        timing = RunTiming(deps.clock(), deps.clock)
        request = with_trace(frame.request, span.headers)
        async with deps.slot(self._context, span):
            run = await deps.service.create(
                tenant,
                request,
                client=self._context.client,
                session_chains=self.recent,
            )
            self._context.model, self._context.response_id = run.response.model, run.id
            await self._begin_steering(lane, LaneSteering(run, request))
            try:
                await run.drive(_FrameSink(self, lane, run, timing, pads=request.pads_deltas))
            finally:
                record_response(span, run.response)
                record_content(deps.tracer, span, request, run.response)
                deps.metrics.record_outcome(timing, run.response, run.event_count, deps.clock())

    # --- steering --------------------------------------------------------------------------------

    async def _steer(self, envelope: FrameEnvelope) -> None:
        """Process a frame of type ``response.steer``. The answer belongs to the lane of the steered
        response, because a client routes it there."""
        frame = await self._read(envelope)
        assert isinstance(frame, SteerFrame)
        target = frame.previous_response_id
        lane = self._lane_of_response.get(target)
        name = None if lane is None else lane.name
        try:
            if frame.error is not None:
                raise frame.error
            if lane is None:
                raise InvalidRequest(
                    f"No response with id '{target}' was created on this connection.",
                    code="response_not_found",
                )
            if lane.steering is None or lane.steering.response_id != target:
                raise already_completed(target)
            events = lane.steering.accept(
                frame.raw, frame.input, envelope.size, self._endpoint.deps.service.ids
            )
        except InvalidRequest as error:
            return await self.send_event(refused_steer(target, frame.raw, error), name)
        if lane.steering.is_waiting:
            self._hold_input(lane.steering)
        await self._send_all(events, name)

    async def _begin_steering(self, lane: _Lane, steering: LaneSteering) -> None:
        """Note that a lane has created a response. Input that waited for the next request of the
        client is part of this response, if it continues the right one."""
        before, lane.steering = lane.steering, steering
        self._lane_of_response[steering.response_id] = lane
        if len(self._lane_of_response) > _MAX_STEERABLE:
            del self._lane_of_response[next(iter(self._lane_of_response))]
        if before is None or not before.is_waiting:
            return
        is_kept = self.recent.set_pending_steering(before.response_id, UNSET)
        if not is_kept or steering.continued_id != before.response_id:
            message = "The next response of the client does not contain this input."
            await self._send_all(before.fail("response_not_active", message), lane.name)

    async def _follow(self, lane: _Lane) -> None:
        """Create the successors of a lane's response, as long as there is input for them."""
        while (steering := lane.steering) is not None and not steering.is_waiting:
            await self._send_all(steering.end(), lane.name)
            if steering.is_waiting:
                return self._hold_input(steering)
            if not (size := steering.input_bytes):
                lane.steering = None
                return
            self._frame_bytes += size  # now it is the input of a request
            try:
                await self._run(lane, CreateFrame(steering.successor))
            except (RequestError, RunError) as error:
                message = getattr(error, "client_message", None) or error.message
                await self._send_all(steering.fail(_NO_SUCCESSOR, message), lane.name)
            except ClientDisconnected:
                raise
            except Exception:
                self._endpoint.deps.log.exception("unexpected error")
                await self._send_all(steering.fail(_NO_SUCCESSOR, UNEXPECTED), lane.name)
            finally:
                self._frame_bytes -= size
                self._give_memory_back()
            if lane.steering is steering:
                return

    def _hold_input(self, steering: LaneSteering) -> None:
        """Let the next request that continues the response get its input."""
        self.recent.set_pending_steering(steering.response_id, steering.pending)

    async def _send_all(self, events: Iterable[Event], lane: str | None) -> None:
        for event in events:
            await self.send_event(event, lane)

    # --- memory ----------------------------------------------------------------------------------

    def remember(self, lane: _Lane, run: Run) -> None:
        """Keep the run's response in memory as the latest response of ``lane`` (the frames with one
        ``stream_id``). Called before the last event of the run is sent.

        If the run failed or was cancelled, its response is not kept, and the response that the run
        continued is removed from memory.
        """
        if run.response.status not in ("completed", "incomplete"):
            return self.evict(lane, run.response.previous_response_id)
        before, lane.latest = lane.latest, run.id
        is_used = any(each.latest == before for each in self._lanes.values())
        self.recent.add(run.chain, None if is_used else before)

    def evict(self, lane: _Lane, previous: str | None) -> None:
        """Remove the response ``previous`` from memory if it is the latest response of ``lane``.
        Called when a frame that continues this response has failed. OpenAI does the same. It stays
        if input for its successor waits."""
        if lane.steering is not None and lane.steering.is_waiting:
            return
        if previous is not None and lane.latest == previous:
            lane.latest = None
            self.recent.remove(previous)

    # --- sending ---------------------------------------------------------------------------------

    async def send_event(self, event: Event, lane: str | None, *, pads: bool = False) -> None:
        """Send one event as one frame. ``pads``: whether a delta is padded."""
        line = _encode(encodable_event(event))
        line = pad_delta(line) if pads else line
        if isinstance(event, Error):
            line = line[:-1] + b',"status":500}'
        await self._send_line(line, lane)

    async def refuse(self, error: RequestError, lane: str | None) -> None:
        """Send an error event that belongs to no run, for example because a frame is invalid. The
        connection stays open. ``lane``: the ``stream_id`` of the frame, if it has one."""
        await self._send_error(
            error.status, error.type, error.message, error.code, error.param, lane
        )

    async def _send_error(
        self,
        status: int,
        kind: str,
        message: str,
        code: str | None,
        param: str | None,
        lane: str | None,
    ) -> None:
        error = {"type": kind, "code": code, "message": message, "param": param}
        await self._send_line(_encode({"type": "error", "status": status, "error": error}), lane)

    async def _send_line(self, line: bytes, lane: str | None) -> None:
        if lane is not None:
            line = b'%b,"stream_id":"%b"}' % (line[:-1], lane.encode())
        try:
            await self._send({"type": "websocket.send", "text": line.decode()})
        except (OSError, RuntimeError):  # raised by servers when the client is gone
            raise ClientDisconnected from None

    async def _watch_access(self) -> None:
        """Wait until the client's API key is no longer valid. Then cancel the runs and close the
        connection."""
        refusal: Unauthorized | None = None
        while refusal is None:
            await asyncio.sleep(_CHECK_S)
            try:
                await self._context.check_access()
            except Unauthorized as error:
                refusal = error
            except StoreError:
                continue  # the keys cannot be read now
        self._has_expired = True
        for lane in self._lanes.values():
            lane.queue.clear()
        self._workers.cancel_all()
        with suppress(ClientDisconnected):
            await self.refuse(refusal, None)
        await self._close(_POLICY_VIOLATION, refusal.message)

    async def _expire(self) -> None:
        """Wait until the connection's lifetime ends. Then refuse new frames, wait until the runs in
        progress end, send an error event and close the connection."""
        await asyncio.sleep(self._endpoint.lifetime_s)
        self._has_expired = True
        with suppress(ClientDisconnected):
            await self._workers.wait()
            await self.refuse(_expired_error(), None)
            await self._close(1000, "")

    async def _close(self, code: int, reason: str) -> None:
        with suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


class _FrameSink(EventSink):
    """Sends the events of a run to the client, one event per WebSocket frame. Each frame has the
    ``stream_id`` of the frame that started the run, if that frame had one."""

    def __init__(
        self, connection: _Connection, lane: _Lane, run: Run, timing: RunTiming, *, pads: bool
    ) -> None:
        self._pads = pads
        self._connection = connection
        self._lane = lane
        self._run = run
        self._timing = timing

    async def write(self, events: tuple[Event, ...]) -> None:
        self.has_sent = True
        if self._timing.first_token_at is None:
            self._timing.record_events(events)
        for event in events:
            await self._connection.send_event(event, self._lane.name, pads=self._pads)

    async def end(self, events: tuple[Event, ...], stored: object) -> None:
        self._connection.remember(self._lane, self._run)
        await self.write(events)


def _expired_error() -> InvalidRequest:
    return InvalidRequest(
        "Responses websocket connection limit reached (60 minutes). Create a new websocket "
        "connection to continue.",
        code="websocket_connection_limit_reached",
    )
