"""How a server is reached: streamable HTTP, SSE, or a process of this machine. Addresses that a
request gives are checked where the socket is made.

What is entered here belongs to the task that enters it: the SDK's scopes must be left where they
were entered.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal
from urllib.parse import urlsplit

import httpcore2
import httpx2
import msgspec
from httpcore2 import AnyIOBackend
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from msgspec import Struct

from antiphon.security.ssrf import Network, may_dial

__all__ = ["ADDRESS_REFUSED", "McpServer", "RequestTrace", "connect", "current_trace"]

#: What the SDK gets from a server that does not speak streamable HTTP, but perhaps SSE.
_LEGACY_STATUSES = frozenset({400, 404, 405})
_MAX_BODY_BYTES = 16 * 2**20


class McpServer(Struct, frozen=True, kw_only=True):
    """Where an MCP server is: a URL, or a command of the operator. ``guarded``: the URL comes from
    a request, so its address has to be public or in one of the ``networks``."""

    url: str = ""
    transport: Literal["auto", "http", "sse"] = "auto"
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    guarded: bool = False
    networks: tuple[Network, ...] = ()

    @property
    def name(self) -> str:
        """For logs: of a URL the host alone, since the rest may be a secret."""
        return self.command or urlsplit(self.url).hostname or ""

    @property
    def key(self) -> str:
        """The same for the same server with the same credentials. It does not tell them."""
        told = msgspec.json.encode(
            [self.url, self.transport, self.command, self.args, self.guarded]
            + [sorted(pairs.items()) for pairs in (self.env, self.headers)]
        )
        return hashlib.sha256(told).hexdigest()


class RequestTrace(msgspec.Struct):
    """What happened while something was asked: whether it was sent, statuses of HTTP that are
    errors, what broke."""

    sent: bool = False
    statuses: list[int] = []
    transport_errors: list[str] = []


#: What the requests of the current context see. The SDK sends a message in its sender's context.
current_trace: ContextVar[RequestTrace | None] = ContextVar("seen", default=None)

#: ``Seen.broken`` of an address that must not be dialled.
ADDRESS_REFUSED = "its address is not a public one"


@asynccontextmanager
async def connect(server: McpServer, connect_s: float) -> AsyncIterator[Client]:
    """A client that has greeted the server. ``seconds``: for a connection to be made."""
    async with AsyncExitStack() as stack:
        if server.command:
            yield await stack.enter_async_context(Client(_traced(_process(server))))
            return
        if server.transport != "sse":
            try:
                client = await stack.enter_async_context(_streamable_http(server, connect_s))
            except (MCPError, ExceptionGroup):
                noted = current_trace.get()
                older = noted is not None and _LEGACY_STATUSES.intersection(noted.statuses)
                if server.transport == "http" or not older:
                    raise
            else:
                yield client
                return
        events = _traced(_sse(server, connect_s))
        yield await stack.enter_async_context(Client(events, mode="legacy"))


class _TracedStream:
    """The stream to a server. What is not even handed to it was not heard there."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: Any) -> None:
        if (noted := current_trace.get()) is not None:
            noted.sent = True
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


def _process(server: McpServer) -> Any:
    """Its stderr is ours; of the environment it gets a few harmless variables and its own."""
    parameters = StdioServerParameters(
        command=server.command, args=list(server.args), env=dict(server.env)
    )
    return stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)


@asynccontextmanager
async def _streamable_http(server: McpServer, seconds: float) -> AsyncIterator[Client]:
    async with (
        _http_client(server, server.headers, seconds) as http,
        Client(_traced(streamable_http_client(server.url, http_client=http))) as client,
    ):
        yield client


def _sse(server: McpServer, seconds: float) -> Any:
    def made(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return _http_client(server, headers or {}, seconds)

    return sse_client(server.url, headers=dict(server.headers), httpx_client_factory=made)


def _http_client(
    server: McpServer, headers: Mapping[str, str], seconds: float
) -> httpx2.AsyncClient:
    """Of one session alone. Calls may be silent for as long as they take: who asks has the clock.
    The environment's proxies are not used: they would dial unchecked."""
    return httpx2.AsyncClient(
        transport=_TracedTransport(server),
        headers=dict(headers),
        timeout=httpx2.Timeout(seconds, read=None),
        trust_env=False,
    )


class _TracedTransport(httpx2.AsyncHTTPTransport):
    """Notes what becomes of requests, and bounds what is answered."""

    def __init__(self, server: McpServer) -> None:
        super().__init__(trust_env=False)
        if server.guarded:
            self._pool = httpcore2.AsyncConnectionPool(
                ssl_context=httpx2.create_ssl_context(trust_env=False),
                network_backend=_GuardedBackend(server.networks),
            )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        noted = current_trace.get()
        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            if noted is not None:
                refused = isinstance(_root_cause(error), _AddressRefused)
                noted.transport_errors.append(
                    ADDRESS_REFUSED if refused else "it could not be reached"
                )
            raise
        except httpx2.TransportError:
            if noted is not None:
                noted.transport_errors.append("the connection broke off")
            raise
        if noted is not None and response.status_code >= 300:
            noted.statuses.append(response.status_code)
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _SizeLimitedStream(response.stream)
        return response


class _SizeLimitedStream(httpx2.AsyncByteStream):
    """A body that breaks off where it becomes too large. Of event streams the SDK bounds events."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > _MAX_BODY_BYTES:
                raise httpx2.ReadError("the answer is too large")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _AddressRefused(httpcore2.ConnectError):
    """An address that must not be dialled."""


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Looks a name up and dials what it found, if it may be dialled: what is checked is what is
    connected to."""

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
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        except (OSError, UnicodeError):
            raise httpcore2.ConnectError("no such name") from None
        addresses = dict.fromkeys(str(each[4][0]) for each in found)
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

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> Any:
        raise _AddressRefused(ADDRESS_REFUSED)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def _root_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
