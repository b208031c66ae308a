"""The proxy of one box (sandbox environment). It forwards HTTP and HTTPS requests to allowed
domains, and inserts secrets into HTTPS requests.

Programs in the box trust the certificate authority of the proxy, so the proxy can decrypt their TLS
connections. The proxy opens a second TLS connection to the server, so it can check every request
and not only the host name in a CONNECT request, and it can insert secrets that never enter the box.
A connection carries only one request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import structlog

from antiphon.security.ssrf import Network, may_dial
from antiphon.support.tasks import running
from antiphon.support.text import truncate_middle

from .authority import BoxAuthority
from .policy import EgressPolicy
from .requests import InvalidProxyRequest, ProxyRequest, read_body, read_request

_log = structlog.get_logger(__name__)

#: The port at which programs inside a box reach the proxy.
PROXY_PORT = 3128
_HTTP, _HTTPS = 80, 443
_PIECE_BYTES = 1 << 16
#: Maximum number of simultaneous connections of a box. Further connections wait.
_MAX_CONNECTIONS = 32
#: Seconds without a byte in either direction after which a connection is closed.
_IDLE_S = 120.0
#: Seconds that the other side may take to close a connection.
_CLOSE_S = 5.0
_REASONS = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}


class EgressProxy:
    """The proxy of one box (sandbox environment). It enforces the box's network policy. ``serve``
    handles one connection from the box."""

    def __init__(self, policy: EgressPolicy, authority: BoxAuthority, dialer: Dialer) -> None:
        self._policy = policy
        self._authority = authority
        self._dialer = dialer
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def certificate(self) -> bytes:
        """The certificate, in PEM, that programs in the box must trust."""
        return self._authority.pem

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables for code in the box: the proxy settings and the placeholders of
        secrets."""
        url = f"http://127.0.0.1:{PROXY_PORT}"
        proxies = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        return {**dict.fromkeys(proxies, url), **self._policy.environment}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection from the box until it ends."""
        if self._is_closed:  # the connection was accepted while the box was being closed
            writer.transport.abort()
            return
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with self._slots:
                await self._serve(reader, writer)
        except InvalidProxyRequest as error:
            await _refuse(writer, 400, str(error))
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            await _close(writer)

    async def close(self) -> None:
        """End all connections of the box."""
        self._is_closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_IDLE_S):
            request = await read_request(reader)
        is_tunnel = request.method == "CONNECT"
        if (reason := self._reason(request, _HTTPS if is_tunnel else _HTTP)) is not None:
            await _refuse(writer, 403, reason)
            return
        if is_tunnel:
            context = await asyncio.to_thread(self._authority.context, request.host)
            async with asyncio.timeout(_IDLE_S):
                # No ``await`` may stand between these two calls, because the next bytes are TLS.
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await writer.start_tls(context)
                request = await read_request(reader, (request.host, request.port))
            if request.method == "CONNECT":
                raise InvalidProxyRequest("A CONNECT request is not allowed inside a tunnel.")
        await self._forward(request, reader, writer, uses_tls=is_tunnel)

    def _reason(self, request: ProxyRequest, port: int) -> str | None:
        """Return the reason why a request is not allowed. Return None if it is allowed. ``port``:
        the only port to which this request may go."""
        host = truncate_middle(request.host, 100)
        if request.host not in self._policy.domains:
            return f"The domain {host!r} is not on the allow-list of this container."
        if request.port != port:
            return f"Only port {port} of {host!r} is allowed."
        return None

    async def _forward(
        self,
        request: ProxyRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        uses_tls: bool,
    ) -> None:
        try:
            server, upstream = await self._dialer.connect(
                request.host, request.port, uses_tls=uses_tls
            )
        except (OSError, TimeoutError) as error:
            _log.info("a container cannot reach a server", host=request.host, error=str(error))
            await _refuse(writer, 502, f"{request.host} cannot be reached.")
            return
        # Secrets are sent only over encrypted connections.
        head = request.head()
        head = self._policy.insert_secrets(request.host, head) if uses_tls else head
        try:
            async with running(_send(head, request.length, reader, upstream)):
                while piece := await _read(server):
                    writer.write(piece)
                    async with asyncio.timeout(_IDLE_S):
                        await writer.drain()
        finally:
            await _close(upstream)


async def _send(
    head: str, length: int | None, reader: asyncio.StreamReader, upstream: asyncio.StreamWriter
) -> None:
    """Send a request from the box to the upstream server, whose connection is ``upstream``. If this
    fails, close that connection. ``head``: the request line and the headers. ``reader``: reads the
    body from the box. ``length``: number of bytes in the body; None if the body is chunked."""
    try:
        upstream.write(head.encode("latin-1"))
        async for piece in read_body(reader, length):
            upstream.write(piece)
            await upstream.drain()
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
        upstream.close()


async def _read(server: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(_IDLE_S):
        return await server.read(_PIECE_BYTES)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection. Abort the connection if the other side does not close it in time or this
    task is cancelled."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    except (TimeoutError, asyncio.CancelledError):
        writer.transport.abort()
    except OSError:
        pass


async def _refuse(writer: asyncio.StreamWriter, status: int, reason: str) -> None:
    body = f"{reason}\n".encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with suppress(OSError):
        writer.write(head.encode() + body)
        await writer.drain()


#: Resolves a host and a port to a list of addresses with ports. The best address comes first.
#: Raises ``OSError``.
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]]

_CONNECT_S = 10.0


async def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    """Resolve a host name with the resolver of the operating system. Return the IP addresses with
    ports."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(each[4][0]), int(each[4][1])) for each in found]


class Dialer:
    """Connects to servers on behalf of boxes (sandbox environments). A server must have a public
    address or an address in ``networks``.

    - ``resolver``: resolves host names.
    - ``tls``: the context that verifies the certificates of servers. By default, it trusts the
      certificate authorities of the operating system.
    """

    def __init__(
        self,
        *,
        resolver: Resolver = resolve,
        networks: Sequence[Network] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._resolver = resolver
        self._networks = networks
        self._tls = tls

    async def connect(
        self, host: str, port: int, *, uses_tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a server. Raises ``OSError`` if the connection fails, or if the server's IP
        address is neither public nor in an allowed network."""
        async with asyncio.timeout(_CONNECT_S):
            addresses = await self._resolver(host, port)
            allowed = [each for each in addresses if may_dial(each[0], self._networks)]
            if not allowed:
                raise OSError("its address is not allowed")
            address, real_port = allowed[0]
            if not uses_tls:
                return await asyncio.open_connection(address, real_port)
            if self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            return await asyncio.open_connection(
                address, real_port, ssl=self._tls, server_hostname=host
            )
