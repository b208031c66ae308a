"""Streams of tasks that are no responses, such as images and transcripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.requests import Request

from antiphon.errors import RequestError, RunError
from antiphon.wire.error_reply import ErrorDetails, ErrorReply

from . import sse
from .disconnect import CancelOnDisconnect

_EventT = TypeVar("_EventT")


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


async def with_failure(
    events: AsyncGenerator[_EventT, None],
) -> AsyncGenerator[_EventT | ErrorReply, None]:
    """Yield events. A failure becomes the last event."""
    async with aclosing(events):
        try:
            async for event in events:
                yield event
        except (RequestError, RunError) as error:
            details = ErrorDetails(
                message=error.message, type="server_error", param=None, code=error.code
            )
            yield ErrorReply(error=details)


def frame_event(event: object) -> bytes:
    """Return an event of a stream as bytes."""
    encoded = msgspec.json.encode(event)
    if isinstance(event, ErrorReply):
        return b"event: error\ndata: " + encoded + b"\n\n"
    return sse.frame_lines((encoded,))
