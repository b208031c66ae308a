"""``/v1/responses`` as a WebSocket: frames become runs, in lanes, and events become frames.

The runs of a lane come one after another, those of different lanes side by side. What a connection
has made it remembers, so that it can be continued though it is not stored. It knows no models,
stores or tools; frames, pings and compression are the server's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import msgspec
from starlette.types import Receive, Scope, Send

from antiphon.errors import InvalidRequest, Overloaded, RequestError, RunError
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.metrics import RunTiming
from antiphon.http.middleware.errors import UNEXPECTED, status_of, type_of
from antiphon.http.middleware.request_context import (
    ClientDisconnected,
    RequestContext,
    request_context,
)
from antiphon.runs.execution.run import EventSink, Run
from antiphon.runs.history.session_chains import SessionChains
from antiphon.wire.events import Error, Event, SteerFailed
from antiphon.wire.parsing.websocket import (
    CreateFrame,
    FrameEnvelope,
    SteerFrame,
    read_envelope,
    read_frame,
)

__all__ = ["Socket"]

#: OpenAI's: runs side by side, names of lanes, and how long a connection lasts.
_SIDE_BY_SIDE = 16
_LANES = 32
LIFETIME_S = 3600.0
#: Frames that may wait for their turn, in all lanes together.
_WAITING = 128

_encode = msgspec.json.Encoder().encode


class Socket:
    """``GET /v1/responses`` with an upgrade: the whole life of a connection, as an ASGI app."""

    def __init__(self, deps: EndpointDependencies, *, lifetime_s: float = LIFETIME_S) -> None:
        self.deps = deps
        self.lifetime_s = lifetime_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = request_context(scope)
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        context.status = 101
        await _Connection(self, context, send).serve(receive)


class _Lane:
    """What waits in it, who works on it, and the last response made in it."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.waiting: deque[FrameEnvelope] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.latest: str | None = None


class _Connection:
    def __init__(self, socket: Socket, context: RequestContext, send: Send) -> None:
        self._socket = socket
        self._exchange = context
        self._send = send
        self._lanes: dict[str | None, _Lane] = {}
        self._places = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._expired = False
        self.recent = SessionChains()

    async def serve(self, receive: Receive) -> None:
        """Until the client leaves, or the connection has lasted as long as it may."""
        ending = asyncio.create_task(self._expire())
        try:
            while (message := await receive())["type"] == "websocket.receive":
                await self._take(message.get("text"))
        except ClientDisconnected:
            pass
        finally:
            workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
            for task in (ending, *workers):
                task.cancel()
            await asyncio.wait((ending, *workers))

    async def _take(self, text: str | None) -> None:
        """A frame goes into its lane; what is none is answered at once."""
        stream_id: str | None = None
        try:
            if text is None:
                raise InvalidRequest("Frames must be text: JSON, one object each.")
            envelope = read_envelope(text, self._socket.deps.limits.body)
            stream_id = envelope.stream_id
            if self._expired:
                raise _expired()
            lane = self._lane(stream_id)
            if sum(len(each.waiting) for each in self._lanes.values()) >= _WAITING:
                raise Overloaded("Too many frames wait on this connection for their turn.")
        except RequestError as error:
            return await self.refuse(error, stream_id)
        if envelope.type == "response.steer":
            return await self._answer(lane, envelope)  # it would come too late in its turn
        lane.waiting.append(envelope)
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(lane))

    def _lane(self, name: str | None) -> _Lane:
        if name not in self._lanes:
            if name is not None and len(self._lanes.keys() - {None}) >= _LANES:
                raise InvalidRequest(
                    "This WebSocket connection has reached its maximum number of distinct stream "
                    f"IDs ({_LANES}). Reuse an existing stream_id or open a new WebSocket "
                    "connection.",
                    param="stream_id",
                    code="websocket_stream_limit_reached",
                )
            self._lanes[name] = _Lane(name)
        return self._lanes[name]

    async def _work(self, lane: _Lane) -> None:
        """What waits in the lane, in order."""
        try:
            while lane.waiting:
                async with self._places:
                    await self._answer(lane, lane.waiting.popleft())
        except ClientDisconnected:
            lane.waiting.clear()
        finally:
            lane.worker = None

    async def _answer(self, lane: _Lane, envelope: FrameEnvelope) -> None:
        previous: str | None = None
        try:
            frame = read_frame(envelope, self._socket.deps.limits.body)
            if isinstance(frame, SteerFrame):
                return await self._refuse_steering(lane, frame)
            previous = frame.request.previous_response_id
            self._exchange.charge()
            await self._run(lane, frame)
        except RequestError as error:
            self.evict(lane, previous)
            await self.refuse(error, lane.name)
        except RunError as error:
            self.evict(lane, previous)
            status = status_of(error.code)
            kind = type_of(status, error.type)
            await self._say_error(status, kind, error.message, error.code, error.param, lane.name)
        except ClientDisconnected:
            raise
        except Exception:
            self._socket.deps.log.exception("unexpected error")
            self.evict(lane, previous)
            await self._say_error(500, "server_error", UNEXPECTED, "server_error", None, lane.name)

    async def _run(self, lane: _Lane, frame: CreateFrame) -> None:
        deps, tenant = self._socket.deps, self._exchange.tenant
        observed = RunTiming(deps.clock(), deps.clock)
        async with deps.admission.slot(tenant):
            run = await deps.service.create(
                tenant, frame.request, session_chains=self.recent, generate=frame.generate
            )
            self._exchange.model, self._exchange.response_id = run.response.model, run.id
            try:
                await run.drive(_Frames(self, lane, run, observed))
            finally:
                if run.response.status in ("in_progress", "cancelled"):
                    deps.metrics.count_abandoned(run.response.model)
                else:
                    deps.metrics.record_response(
                        observed, run.response, run.event_count, deps.clock()
                    )

    # --- memory ----------------------------------------------------------------------------------

    def keep(self, lane: _Lane, run: Run) -> None:
        """The lane's latest response, in place of the one before: before its end is told."""
        if run.response.status not in ("completed", "incomplete"):
            return self.evict(lane, run.response.previous_response_id)
        before, lane.latest = lane.latest, run.id
        self.recent.add(run.chain)
        if before is not None and all(each.latest != before for each in self._lanes.values()):
            self.recent.remove(before)

    def evict(self, lane: _Lane, previous: str | None) -> None:
        """What could not be continued in its own lane is not kept for another try."""
        if previous is not None and lane.latest == previous:
            lane.latest = None
            self.recent.remove(previous)

    # --- what is said ----------------------------------------------------------------------------

    async def say(self, event: Event, lane: str | None) -> None:
        """One event, one frame."""
        line = _encode(event)
        if isinstance(event, Error):
            line = line[:-1] + b',"status":500}'
        await self._say(line, lane)

    async def refuse(self, error: RequestError, lane: str | None) -> None:
        """An error instead of a run; the connection goes on."""
        await self._say_error(
            error.status, error.type, error.message, error.code, error.param, lane
        )

    async def _say_error(
        self,
        status: int,
        kind: str,
        message: str,
        code: str | None,
        param: str | None,
        lane: str | None,
    ) -> None:
        error = {"type": kind, "code": code, "message": message, "param": param}
        await self._say(_encode({"type": "error", "status": status, "error": error}), lane)

    async def _refuse_steering(self, lane: _Lane, frame: SteerFrame) -> None:
        error = {
            "type": "invalid_request_error",
            "code": "steering_not_supported",
            "message": "A response of this server cannot be steered while it is made.",
            "param": None,
        }
        failed = SteerFailed(sequence_number=0, error=error)
        await self.say(failed, lane.name)

    async def _say(self, line: bytes, lane: str | None) -> None:
        if lane is not None:
            line = b'%b,"stream_id":"%b"}' % (line[:-1], lane.encode())
        try:
            await self._send({"type": "websocket.send", "text": line.decode()})
        except (OSError, RuntimeError):  # how servers say that nobody is there
            raise ClientDisconnected from None

    async def _expire(self) -> None:
        """After its time: take nothing more, let what runs end, and close."""
        await asyncio.sleep(self._socket.lifetime_s)
        self._expired = True
        with suppress(ClientDisconnected):
            while workers := [w for lane in self._lanes.values() if (w := lane.worker)]:
                await asyncio.wait(workers)
            await self.refuse(_expired(), None)
            with suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": 1000, "reason": ""})


class _Frames(EventSink):
    """A run on its way to the lane that asked for it."""

    def __init__(self, connection: _Connection, lane: _Lane, run: Run, observed: RunTiming) -> None:
        self._connection = connection
        self._lane = lane
        self._run = run
        self._observed = observed

    async def write(self, events: tuple[Event, ...]) -> None:
        self.has_sent = True
        if self._observed.first is None:
            self._observed.record_events(events)
        for event in events:
            await self._connection.say(event, self._lane.name)

    async def end(self, events: tuple[Event, ...], stored: object) -> None:
        self._connection.keep(self._lane, self._run)
        await self.write(events)


def _expired() -> InvalidRequest:
    return InvalidRequest(
        "Responses websocket connection limit reached (60 minutes). Create a new websocket "
        "connection to continue.",
        code="websocket_connection_limit_reached",
    )
