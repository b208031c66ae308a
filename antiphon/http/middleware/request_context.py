"""Middleware that creates the context of each request: its id, its client, and data for the log.

This is the outermost middleware. It adds ``x-request-id`` to every response and writes one log line
per request. The log line contains no headers and no bodies.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import RunError
from antiphon.limits.clients import ANYONE
from antiphon.runs.execution.run import ReaderGone
from antiphon.stream.writer import Ids
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.log import Log
from antiphon.support.logs import line_values
from antiphon.support.tasks import do_nothing
from antiphon.tracing.base import Span, Tracer
from antiphon.wire.json_types import JsonObject
from antiphon.wire.response import Usage

_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}\Z")
_STARTS = ("http.response.start", "websocket.http.response.start")

#: Headers of the W3C trace context, by the names in ``TraceHeaders``.
_TRACE_HEADERS = (("traceparent", b"traceparent"), ("tracestate", b"tracestate"))

#: Requests for these paths are logged at debug level only: paths that monitoring polls, and the
#: files of the web page.
_QUIET = frozenset({"/health", "/ready", "/metrics"})
_PAGE_FILES = "/ui/"

#: nginx's status for a request whose client disconnected before the response.
CLIENT_CLOSED_REQUEST = 499


class RunOfRequest(Protocol):
    """A run whose events or response the client of the request gets."""

    def fail(self, error: RunError) -> None:
        """Stop the run, which then ends ``failed`` with this error."""


class ClientDisconnected(ReaderGone):
    """The client disconnected before the response was sent."""


class RequestContext:
    """Data about one request, filled in while the request is processed. The log, the metrics and
    the rate limits use this data."""

    __slots__ = (
        "_held",
        "charge",
        "check_access",
        "client",
        "id",
        "limit_headers",
        "line",
        "memory",
        "model",
        "response_id",
        "runs",
        "span",
        "started",
        "status",
        "tenant",
        "tenant_deletion",
        "usage",
    )

    def __init__(self, id: str, started: float, span: Span) -> None:
        self.id = id
        self.span = span
        self.started = started
        self.status: int | None = None
        self.tenant: str = ""
        #: When the tenant was last deleted before the request; 0 if it never was.
        self.tenant_deletion = 0.0
        self.client = ANYONE
        #: The name of the line of a batch that is executed; empty for a request of a client.
        self.line = ""
        self.model: str | None = None
        self.response_id: str | None = None
        #: The runs of the request, whose failure its client reads.
        self.runs: Sequence[RunOfRequest] = ()
        self.usage: Usage | None = None
        #: Count one more request of this client. Raises ``Overloaded`` above its rate limit.
        self.charge: Callable[[], Awaitable[None]] = do_nothing
        #: Read the client of the request again, with its present limits. Raises ``Unauthorized`` if
        #: its API key is no longer valid.
        self.check_access: Callable[[], Awaitable[None]] = do_nothing
        #: Headers about the rate limits of the client.
        self.limit_headers: list[tuple[bytes, bytes]] = []
        #: The memory for large bodies, in bytes. None: it is not limited.
        self.memory: FairLimiter | None = None
        #: How many bytes of it the request holds, and for which tenant.
        self._held = ("", 0)

    @property
    def key(self) -> str | None:
        """The name of the client's API key."""
        return self.client.key

    @property
    def held_memory(self) -> int:
        """How many bytes of the memory for large bodies the request holds."""
        return self._held[1]

    async def hold_memory(self, size: int) -> None:
        """Wait for ``size`` more bytes of the memory for large bodies, and hold them until the
        request ends. A request that already holds some must not wait for ever."""
        if self.memory is not None:
            tenant = self.tenant
            await self.memory.acquire(tenant, amount=size)
            self._held = tenant, self.held_memory + size

    def keep_memory(self, size: int) -> None:
        """Give back the memory that the request holds, except ``size`` bytes."""
        tenant, held = self._held
        if self.memory is not None and held > size:
            self._held = tenant, size
            self.memory.release(tenant, held - size)


def request_context(scope: Scope) -> RequestContext:
    """Return the context of the request."""
    context: RequestContext = scope["antiphon.context"]
    return context


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the value of the first header with this lower-case name, or None if the request has no
    such header."""
    try:
        by_name: dict[bytes, bytes] = scope["antiphon.headers"]
    except KeyError:  # built once: about ten headers of each request are looked up
        by_name = scope["antiphon.headers"] = dict(reversed(list(scope["headers"])))
    return by_name.get(name)


def _is_read_of_page(scope: Scope) -> bool:
    """Return whether the web page reads something, which it does often. Browsers mark requests of a
    page to its own server with the header ``Sec-Fetch-Site``."""
    return scope.get("method") == "GET" and header(scope, b"sec-fetch-site") == b"same-origin"


def route_path(scope: Scope) -> str:
    """Return the path of the request without ``root_path``. ``root_path`` is the path at which
    another app mounts this app."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def trace_headers(scope: Scope) -> dict[str, str]:
    """Return the W3C trace context headers of a request. Returns an empty dict if the request has
    no ``traceparent``."""
    if header(scope, b"traceparent") is None:
        return {}
    return {
        name: value.decode("latin-1")
        for name, key in _TRACE_HEADERS
        if (value := header(scope, key))
    }


class RequestContextMiddleware:
    """Creates the context of each request, adds ``x-request-id`` to the response and logs the
    request.

    ``count_request`` is called with method, route and status at the end of a request. Each request
    becomes a tracing span of ``tracer``. If the request headers name a span of the client, the span
    of the client is the parent. ``body_memory``: the bytes of memory for large bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        ids: Ids,
        log: Log,
        clock: Callable[[], float],
        count_request: Callable[[str, str, int], None],
        tracer: Tracer,
        body_memory: FairLimiter,
    ) -> None:
        self._body_memory = body_memory
        self._tracer = tracer
        self._app = app
        self._ids = ids
        self._log = log
        self._clock = clock
        self._count_request = count_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        client_id = header(scope, b"x-request-id")
        valid = client_id is not None and _VALID_ID.match(client_id)
        context = RequestContext(
            client_id.decode() if client_id and valid else self._ids("req"),
            self._clock(),
            self._start_span(scope),
        )
        context.memory = self._body_memory
        scope["antiphon.context"] = context
        line_values.set({"request_id": context.id})

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] in _STARTS:
                context.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", context.id.encode()),
                    *context.limit_headers,
                ]
            return send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnected:
            context.status = CLIENT_CLOSED_REQUEST
        finally:
            context.keep_memory(0)
            self._close(scope, context)
            # They refer to the context. Without the cycle, it is freed at once.
            context.charge = context.check_access = do_nothing

    def _start_span(self, scope: Scope) -> Span:
        headers = trace_headers(scope)
        if not self._tracer.enabled or route_path(scope) in _QUIET:
            return Span(headers)
        method = scope.get("method", "WEBSOCKET")
        return self._tracer.start(method, headers, {"http.request.method": method}, kind="server")

    def _close(self, scope: Scope, context: RequestContext) -> None:
        method = scope.get("method", "WEBSOCKET")
        status = context.status or 500
        route = "unknown" if scope.get("route") is None else scope["route"].path
        self._count_request(method, route, status)
        if context.span.is_recording:
            self._end_span(context, method, route, status)
        path = route_path(scope)
        is_quiet = path in _QUIET or path.startswith(_PAGE_FILES) or _is_read_of_page(scope)
        log = self._log.debug if is_quiet else self._log.info
        fields: JsonObject = {
            "method": method,
            "path": scope["path"],
            "status": status,
            "ms": round((self._clock() - context.started) * 10_000) / 10,
            "tenant": context.tenant,
        }
        if (key := context.client.key) is not None:
            fields["key"] = key
        if context.model is not None:
            fields["model"] = context.model
        if context.response_id is not None:
            fields["response_id"] = context.response_id
        if (usage := context.usage) is not None:
            fields["input_tokens"] = usage.input_tokens
            fields["cached_tokens"] = usage.input_tokens_details.cached_tokens
            fields["output_tokens"] = usage.output_tokens
        log("request", **fields)

    def _end_span(self, context: RequestContext, method: str, route: str, status: int) -> None:
        span = context.span
        span.rename(f"{method} {route}")
        span.set(
            {
                "http.route": route,
                "http.response.status_code": status,
                "antiphon.request.id": context.id,
                "antiphon.tenant": context.tenant,
                "antiphon.key": context.key,
                "gen_ai.request.model": context.model,
                "gen_ai.response.id": context.response_id,
            }
        )
        if status >= 500:
            span.fail(str(status))
        span.end()
