"""Streams of tasks other than responses, such as downloads, images and transcripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.errors import RequestError, RunError
from antiphon.wire.admin.managed_models import PullFailed
from antiphon.wire.error_reply import ErrorDetails, ErrorReply

from . import sse
from .disconnect import CancelOnDisconnect
from .keepalive import KeepaliveTimer
from .response import EventStream, StreamFormat

_EventT = TypeVar("_EventT")


#: The format of OpenAI's streams of events for a task.
_EVENTS = StreamFormat(end_mark=b"")


def _frame_event(event: object) -> bytes:
    """Return an event of a stream as bytes."""
    encoded = msgspec.json.encode(event)
    if isinstance(event, ErrorReply):
        return b"event: error\ndata: " + encoded + b"\n\n"
    return sse.frame_lines((encoded,))


def _failure(error: RequestError | RunError) -> ErrorReply:
    """Return the event of a failure."""
    return ErrorReply(
        error=ErrorDetails(message=error.message, type="server_error", param=None, code=error.code)
    )


def pull_failure(error: RequestError | RunError) -> PullFailed:
    """Return the last event of a download that fails."""
    return PullFailed(message=error.message)


class TaskStream:
    """The stream of a task, as an ASGI app. If the client disconnects, the task is cancelled.
    ``encode`` returns the bytes of an event. ``failure`` returns the last event of a task that
    fails; None: the stream has no such event, and is cut off."""

    def __init__(
        self,
        events: AsyncGenerator[_EventT, None],
        keepalive_s: float,
        encode: Callable[[_EventT], bytes] = _frame_event,
        stream_format: StreamFormat = _EVENTS,
        failure: Callable[[RequestError | RunError], object] | None = _failure,
    ) -> None:
        self._events: AsyncGenerator[Any, None] = events
        self._keepalive_s = keepalive_s
        self._encode: Callable[[Any], bytes] = encode
        self._format = stream_format
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream, comment = EventStream(scope, send, self._format.headers), self._format.comment

        async def write(piece: bytes) -> None:
            if (rest := stream.write(piece)) is not None:
                await rest

        try:
            async with CancelOnDisconnect(scope, receive), aclosing(self._events) as events:
                await stream.start()
                with KeepaliveTimer(self._keepalive_s, lambda: write(comment)) as keepalive:
                    async for event in events:
                        async with keepalive.sending():
                            await write(self._encode(event))
        except (RequestError, RunError) as error:
            if self._failure is None:
                raise
            await write(self._encode(self._failure(error)))
        await stream.end(mark=self._format.end_mark)


async def first_awaited(
    request: Request, events: AsyncGenerator[_EventT, None]
) -> AsyncGenerator[_EventT, None]:
    """Wait for the first event, so that a request that is refused gets an HTTP error, and return
    the events. Raises what the events raise before the first one."""
    async with CancelOnDisconnect(request.scope, request.receive):
        first = await anext(events)
    return _continued(first, events)


async def _continued(
    first: _EventT, events: AsyncGenerator[_EventT, None]
) -> AsyncGenerator[_EventT, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event
