"""One request and its answer, as the rim sees them: who asked, under which id, how it ended.

The outermost layer gives every answer its ``x-request-id`` and writes the one log line. It knows
neither bodies nor secrets: nothing of what a client says or hears can reach a log from here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from antiphon.runs.execution.run import ReaderGone
from antiphon.stream.writer import Ids
from antiphon.wire.response import Usage

__all__ = [
    "ClientDisconnected",
    "RequestContext",
    "RequestContextMiddleware",
    "exchange_of",
    "header",
    "trace_of",
]

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_STARTS = ("http.response.start", "websocket.http.response.start")

#: Polled all day by machines: their lines are for debugging only.
_QUIET = frozenset({"/health", "/ready", "/metrics"})

#: What nginx calls a request whose client left before the answer.
CLIENT_LEFT = 499


class ClientDisconnected(ReaderGone):
    """Nobody is there to be answered."""


class RequestContext:
    """Filled in on the way; read once, at the end."""

    __slots__ = (
        "charge",
        "id",
        "key",
        "model",
        "response_id",
        "started",
        "status",
        "tenant",
        "usage",
    )

    def __init__(self, id: str, started: float) -> None:
        self.id = id
        self.started = started
        self.status: int | None = None
        self.tenant: str = ""
        self.key: str | None = None
        self.model: str | None = None
        self.response_id: str | None = None
        self.usage: Usage | None = None
        #: Counts one request of whoever this is; raises ``Overloaded`` when they were too many.
        self.charge: Callable[[], None] = lambda: None


def exchange_of(scope: Scope) -> RequestContext:
    """The exchange this scope belongs to."""
    exchange: RequestContext = scope["antiphon.exchange"]
    return exchange


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def trace_of(scope: Scope) -> dict[str, str]:
    """The W3C trace context of a request."""
    found = {name.decode(): header(scope, name) for name in (b"traceparent", b"tracestate")}
    return {name: value.decode("latin-1") for name, value in found.items() if value}


class RequestContextMiddleware:
    """The outermost layer. ``counted`` is told method, route and status of every exchange."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ids: Ids,
        log: Any,
        clock: Callable[[], float],
        counted: Callable[[str, str, int], None],
    ) -> None:
        self._app = app
        self._ids = ids
        self._log = log
        self._clock = clock
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        given = header(scope, b"x-request-id")
        sane = given is not None and _SANE_ID.match(given)
        exchange = RequestContext(
            given.decode() if given and sane else self._ids("req"), self._clock()
        )
        scope["antiphon.exchange"] = exchange
        bind_contextvars(request_id=exchange.id)

        def stamped(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", exchange.id.encode()),
                ]
            return send(message)

        try:
            await self._app(scope, receive, stamped)
        except ClientDisconnected:
            exchange.status = CLIENT_LEFT
        finally:
            self._close(scope, exchange)

    def _close(self, scope: Scope, exchange: RequestContext) -> None:
        method = scope.get("method", "WEBSOCKET")
        status = exchange.status or 500
        route = scope.get("route")
        self._counted(method, "unknown" if route is None else route.path, status)
        say = self._log.debug if scope["path"] in _QUIET else self._log.info
        seen: dict[str, Any] = {
            "key": exchange.key,
            "model": exchange.model,
            "response_id": exchange.response_id,
        }
        if (usage := exchange.usage) is not None:
            seen["input_tokens"] = usage.input_tokens
            seen["cached_tokens"] = usage.input_tokens_details.cached_tokens
            seen["output_tokens"] = usage.output_tokens
        say(
            "request",
            method=method,
            path=scope["path"],
            status=status,
            ms=round((self._clock() - exchange.started) * 1000, 1),
            tenant=exchange.tenant,
            **{name: value for name, value in seen.items() if value is not None},
        )
