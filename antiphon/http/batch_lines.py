"""Executes the requests of batches: each one goes through the routes of the server, like a request
of a client, so that every endpoint of a batch has its own answers and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import unsupported_parameter
from antiphon.http.middleware.errors import ErrorMiddleware
from antiphon.http.middleware.request_context import RequestContext
from antiphon.runs.batches.lines import LineReply
from antiphon.runs.batches.worker import LineRequest
from antiphon.stream.writer import Ids
from antiphon.support.log import Log
from antiphon.tracing.base import Span

#: The header of an answer to a request whose tools must not run again.
_FORBIDS_RETRY = (b"x-should-retry", b"false")


class LineExecutor:
    """Sends requests to the routes of a server, behind its authentication. ``clock`` returns
    monotonic seconds."""

    def __init__(self, routes: ASGIApp, *, ids: Ids, log: Log, clock: Callable[[], float]) -> None:
        self._routes = routes
        self._app = ErrorMiddleware(self._route, log=log)
        self._ids = ids
        self._clock = clock

    async def __call__(self, request: LineRequest) -> LineReply:
        """Execute a request and return its answer."""
        context = RequestContext(self._ids("req"), self._clock(), Span({}))
        context.tenant, context.client, context.line = request.tenant, request.client, request.key
        body: list[bytes] = []
        may_retry = True
        pending = [request.body]

        async def receive() -> Message:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            await asyncio.get_running_loop().create_future()  # the client never disconnects
            raise AssertionError

        async def send(message: Message) -> None:
            nonlocal may_retry
            if message["type"] == "http.response.start":
                context.status = message["status"]
                may_retry = _FORBIDS_RETRY not in message["headers"]
            else:
                body.append(message.get("body", b""))

        await self._app(_scope(request, context), receive, send)
        return LineReply(context.status or 500, context.id, b"".join(body) or b"null", may_retry)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        _refuse_modes(scope["antiphon.batch_body"])
        await self._routes(scope, receive, send)


class _Modes(Struct):
    """The fields of a request that ask for an answer in another mode."""

    stream: Any = None
    background: Any = None


_decode_modes = msgspec.json.Decoder(_Modes).decode


def _refuse_modes(body: bytes) -> None:
    """Raise ``InvalidRequest`` for a request that cannot be answered in a file."""
    modes = _decode_modes(body)
    for name in _Modes.__struct_fields__:
        if getattr(modes, name):
            raise unsupported_parameter(name, where="in batches")


def _scope(request: LineRequest, context: RequestContext) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": request.url,
        "raw_path": request.url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "antiphon.context": context,
        "antiphon.batch_body": request.body,
    }
