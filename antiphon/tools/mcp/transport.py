"""Connections to MCP servers: by streamable HTTP, by SSE, or to a local process.

If the URL of an MCP server comes from a request, its IP address is checked when the socket is
created, to prevent SSRF. The same task must enter and exit a connection, because the MCP SDK uses
cancel scopes.

The first import of this module imports the MCP SDK, which takes about a second, so import it in a
thread.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import httpcore2
import httpx2
from httpcore2 import AnyIOBackend
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antiphon.security.ssrf import Network, may_dial

from .endpoint import (
    ADDRESS_REFUSED,
    BROKEN_OFF,
    UNSUPPORTED,
    McpEndpoint,
    OAuthClient,
    current_trace,
)
from .oauth import ClientCredentials
from .tasks import TaskSupport

#: The largest message of a server, in bytes and in values. An object or array counts as ten values,
#: which is about what it costs.
_MAX_BODY_BYTES = 16 * 2**20
_MAX_VALUES = 200_000
_CHARS = rb'"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+'
#: A string of JSON, or the beginning of one at the end of a piece, as the group. A string ends at
#: the end of its line, whether the message is valid or not.
_STRING = re.compile(rb'%b["\r\n]|(%b\\?)\Z' % (_CHARS, _CHARS), re.DOTALL)
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")


class McpConnector:
    """Connects to MCP servers.

    All sessions share one TLS context. Creating it takes up to 100 ms, because all CA certificates
    are loaded. So create the connector in a thread.
    """

    def __init__(self) -> None:
        self._tls = httpx2.create_ssl_context(trust_env=False)
        #: The tokens of OAuth clients, which all sessions share.
        self._tokens: dict[OAuthClient, ClientCredentials] = {}

    def era_of(self, client: Client) -> str:
        """Return how the server of a client negotiates the version of the protocol: the name of a
        version that needs no handshake, or ``legacy``."""
        spoken = client.protocol_version
        return spoken if spoken in MODERN_PROTOCOL_VERSIONS else "legacy"

    @asynccontextmanager
    async def connect(
        self, server: McpEndpoint, connect_s: float, era: str = ""
    ) -> AsyncIterator[Client]:
        """Connect to an MCP server and yield an initialized client.

        - ``connect_s``: time limit for the TCP connection, in seconds.
        - ``era``: the result of ``era_of`` for an earlier client. If it is empty, the server is
          asked for its versions.
        """
        async with self._open(server, connect_s, era or "auto") as client:
            # It would match the patterns of the server's output schemas, which may take for ever.
            client.session.validate_tool_result = _accept  # type: ignore[method-assign]
            yield client

    @asynccontextmanager
    async def _open(self, server: McpEndpoint, connect_s: float, era: str) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            if server.command:
                yield await stack.enter_async_context(_client(_process(server), era))
                return
            if server.transport != "sse":
                try:
                    client = await stack.enter_async_context(
                        self._streamable_http(server, connect_s, era)
                    )
                except (MCPError, ExceptionGroup):
                    trace = current_trace.get()
                    is_legacy = trace is not None and UNSUPPORTED.intersection(trace.statuses)
                    if server.transport == "http" or not is_legacy:
                        raise
                else:
                    yield client
                    return
            events = self._sse(server, connect_s)
            yield await stack.enter_async_context(_client(events, "legacy"))

    @asynccontextmanager
    async def _streamable_http(
        self, server: McpEndpoint, seconds: float, era: str
    ) -> AsyncIterator[Client]:
        async with (
            self._http_client(server, server.headers, seconds) as http,
            _client(streamable_http_client(server.url, http_client=http), era) as client,
        ):
            yield client

    def _sse(self, server: McpEndpoint, seconds: float) -> Any:
        def create_client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return self._http_client(server, headers or {}, seconds)

        return sse_client(
            server.url, headers=dict(server.headers), httpx_client_factory=create_client
        )

    def _http_client(
        self, server: McpEndpoint, headers: Mapping[str, str], seconds: float
    ) -> httpx2.AsyncClient:
        """Return the HTTP client of one session.

        It has no read timeout, because the caller limits the duration of a call. It ignores proxies
        in the environment, because a proxy would bypass the check of the MCP server's address.
        """
        client = server.oauth
        if client is not None and client not in self._tokens:
            self._tokens[client] = ClientCredentials(client, self._tls)
        return httpx2.AsyncClient(
            auth=None if client is None else self._tokens[client],
            transport=_TracedTransport(server, self._tls),
            headers=dict(headers),
            timeout=httpx2.Timeout(seconds, read=None),
            trust_env=False,
        )


def _client(transport: Any, era: str) -> Client:
    """Return a client that names Antiphon, and that lets servers answer calls with tasks. It
    declares no elicitation, because no user is there to ask. It has no cache of its own, because
    Antiphon's cache of tools outlives a session."""
    return Client(
        _traced(transport),
        mode=era,
        client_info=Implementation(name="antiphon", title="Antiphon", version=version("antiphon")),
        extensions=[TaskSupport()],
        cache=None,
    )


async def _accept(name: str, result: CallToolResult) -> None:
    """Accept the structured content of a result, which the model gets as text."""


class _TracedStream:
    """The stream of messages to an MCP server. When a message is sent, the stream records this in
    the trace of the request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: Any) -> None:
        if (trace := current_trace.get()) is not None:
            trace.was_sent = True
        await self._stream.send(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> _TracedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


@asynccontextmanager
async def _traced(transport: Any) -> AsyncGenerator[Any, None]:
    async with transport as (read, write):
        yield read, _TracedStream(write)


def _process(server: McpEndpoint) -> Any:
    """Return the transport to an MCP server that runs as a local process. Entering the transport
    starts the process.

    The process writes its stderr to the stderr of Antiphon. Its environment contains the configured
    variables and the few variables of Antiphon's environment that the MCP SDK considers safe.
    """
    parameters = StdioServerParameters(
        command=server.command, args=list(server.args), env=dict(server.env)
    )
    return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)


class _TracedTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport that records the outcome of requests in their traces. It limits the size of
    answers."""

    def __init__(self, server: McpEndpoint, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, trust_env=False)
        if server.needs_public_address:
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=tls, network_backend=_GuardedBackend(server.networks)
            )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        trace = current_trace.get()
        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            if trace is not None:
                refused = isinstance(_root_cause(error), _AddressRefused)
                trace.transport_errors.append(
                    ADDRESS_REFUSED if refused else "it could not be reached"
                )
            raise
        except httpx2.TransportError:
            if trace is not None:
                trace.transport_errors.append(BROKEN_OFF)
            raise
        if trace is not None and response.status_code >= 300:
            trace.statuses.append(response.status_code)
            trace.challenge = response.headers.get("www-authenticate", "")
        elif trace is not None and request.method == "POST":
            trace.was_accepted = True
        content_type = response.headers.get("content-type", "")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        is_events = content_type.startswith("text/event-stream")
        response.stream = LimitedStream(response.stream, is_events=is_events)
        return response


class LimitedStream(httpx2.AsyncByteStream):
    """A response body that raises an error when a message in it is too large, or consists of too
    many values.

    The MCP SDK parses a message in one step on the event loop, and needs some 12 µs and 1 kB for
    each object, so a server of a tenant could stop the clients of all others. ``is_events``:
    whether the body is an event stream, in which each event is a message.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, *, is_events: bool) -> None:
        self._stream = stream
        self._is_events = is_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message, before = _MessageSize(), b""
        async for piece in self._stream:
            end = _last_event_end(before, piece) if self._is_events else 0
            if end:
                message.add(piece[:end])
                message = _MessageSize()
            message.add(piece[end:])
            before = (before + piece)[-3:]
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _MessageSize:
    """The size of a message so far, in bytes and in values."""

    def __init__(self) -> None:
        self._bytes = self._values = 0
        #: The beginning of a string or of an escape sequence that the next piece continues.
        self._open = b""

    def add(self, piece: bytes) -> None:
        """Add a piece of the message. Raises ``httpx2.ReadError`` if the message is too large."""
        self._bytes += len(piece)
        plain, quote, rest = _STRING.sub(rb"\1", self._open + piece).partition(b'"')
        escapes = len(rest) - len(rest.rstrip(b"\\"))
        self._open = quote + b"\\" * (escapes % 2)
        self._values += plain.count(b",") + 10 * (plain.count(b"{") + plain.count(b"["))
        if self._bytes > _MAX_BODY_BYTES or self._values > _MAX_VALUES:
            raise httpx2.ReadError("the answer is too large")


def _last_event_end(before: bytes, piece: bytes) -> int:
    """Return the position in ``piece`` after its last empty line, which ends an event, or 0.
    ``before``: the last bytes before the piece."""
    text = before + piece
    ends = (text.rfind(end) + len(end) for end in _EVENT_ENDS if end in text)
    return max(0, max(ends, default=0) - len(before))


class _AddressRefused(httpcore2.ConnectError):
    """Raised instead of connecting to an address that is not allowed."""


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    """A network backend that connects only to allowed addresses.

    It resolves the host name itself and connects to exactly the address that was checked, so a
    second DNS answer cannot bypass the check.
    """

    def __init__(self, networks: Sequence[Network]) -> None:
        self._networks = networks
        self._inner = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            address_infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("no such name") from None
        addresses = dict.fromkeys(str(each[4][0]) for each in address_infos)
        allowed = [each for each in addresses if may_dial(each, self._networks)]
        failure: Exception = _AddressRefused(ADDRESS_REFUSED)
        for each in allowed:
            try:
                return await self._inner.connect_tcp(
                    each, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, *args: object, **kwargs: object) -> Any:
        raise _AddressRefused(ADDRESS_REFUSED)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
