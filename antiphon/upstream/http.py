"""HTTP connections to one server, and their pool.

Redirects are not followed, cookies are not stored, and responses are not decompressed. Every
failure is raised as an ``OSError``. A failed request is sent again only in one case: it was sent
over an idle connection that the server had just closed.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from antiphon.support.push import Sink

from .dialing import Connector, Target, proxy_headers, split_url
from .exchange import Connection, Exchange

#: Seconds after which an idle connection is closed.
_IDLE_S = 30.0
#: Maximum number of times that one request is sent again because the server had closed the
#: connection.
_MAX_REPLACED = 3
#: Maximum number of URLs whose parts are kept, and of heads of requests.
_MAX_TARGETS = 256
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

#: Connections to servers with the same scheme, address and TLS name can replace each other.
_Key = tuple[str, str, int, str | None]


class HttpResponse:
    """A response whose body is read while it arrives. The names in ``headers`` are in lower
    case."""

    __slots__ = ("_connection", "_exchange", "headers", "status")

    def __init__(self, connection: Connection, exchange: Exchange) -> None:
        self._connection, self._exchange = connection, exchange
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.headers

    @property
    def media_type(self) -> str:
        """The media type of the body, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self._exchange.is_read

    async def read(self) -> bytes:
        """Wait until at least one byte of the body has arrived, and return all bytes that have
        arrived. Returns b"" at the end of the body.

        Raises ``OSError`` if the connection breaks, and ``TimeoutError`` if no data arrives for too
        long.
        """
        return await self._exchange.read()

    async def pump(self, sink: Sink[bytes]) -> None:
        """Give the body to ``sink`` while it arrives, until its end. See ``support.push``. Raises
        ``OSError`` in the same cases as ``read``; the error is then also in ``error``."""
        await self._exchange.pump(sink)

    @property
    def error(self) -> Exception | None:
        """The error with which the response broke off."""
        return self._exchange.error

    def close(self) -> None:
        """Stop reading the response. If the body is incomplete, the connection is closed."""
        self._connection.release(self._exchange)


class HttpClient:
    """HTTP client with its own connection pool.

    ``headers``: headers that are sent with every request. ``connect_s``: maximum time to open a
    connection, in seconds. ``silence_s``: maximum time to wait for the next data from the server,
    in seconds. Raises ``SetupError`` if the extra is not installed, and ``ValueError`` for a header
    with a control character.
    """

    def __init__(self, headers: Mapping[str, str], *, connect_s: float, silence_s: float) -> None:
        self._connector = Connector(connect_s)
        self._headers = _checked(headers)
        self._silence_s = silence_s
        self._targets: dict[str, Target] = {}
        # Heads contain secrets, so the cache ends with the client.
        self._encode_head = lru_cache(_MAX_TARGETS)(_encode_head)
        #: Idle connections with the times of their last use, oldest first.
        self._idle: dict[_Key, list[tuple[Connection, float]]] = {}
        self._connections: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def request(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        host: str | None = None,
    ) -> HttpResponse:
        """Send a request and return the response as soon as its headers have arrived.

        ``headers``: headers for this request, in addition to the client's headers. They replace
        headers with the same name. ``host``: the host name of the server, for a ``url`` with an IP
        address. Raises ``OSError``, and ``TimeoutError`` if connecting or waiting for data takes
        too long.
        """
        target = self._target(url)
        name = urlsplit(f"//{host}").hostname if host and target.scheme == "https" else None
        sent = {**self._headers, **(_checked(headers) if headers else {})}
        authority = host or target.authority
        head = self._encode_head(method, target, authority, tuple(sent.items()))
        head += b"content-length: %d\r\n\r\n" % len(body) if body or method == "POST" else b"\r\n"
        key = (target.scheme, target.host, target.port, name)
        for _ in range(_MAX_REPLACED):
            connection = self._take_idle(key)
            if connection is None:
                break
            exchange = connection.send(head, body, self._silence_s)
            try:
                return await _response(connection, exchange)
            except ConnectionError:
                # Servers close idle connections, many of them after 5 seconds. A request may be
                # sent at the same moment.
                if exchange.has_data or self._is_closed:
                    raise
        connection = await self._open(key, target, name)
        return await _response(connection, connection.send(head, body, self._silence_s))

    async def close(self) -> None:
        """Close all connections, and wait until they are closed. After this, reading a response
        fails."""
        self._is_closed = True
        self._encode_head.cache_clear()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in tuple(self._connections):
            connection.fail(ConnectionError("the connections are closed"))
        while self._connections:  # an aborted transport is closed by the event loop's next round
            await asyncio.sleep(0)

    # --- requests --------------------------------------------------------------------------------

    def _target(self, url: str) -> Target:
        target = self._targets.get(url)
        if target is None:
            try:
                target = split_url(url)
            except ValueError as error:
                raise ConnectionError(str(error)) from None
            if len(self._targets) >= _MAX_TARGETS:
                self._targets.clear()
            self._targets[url] = target
        return target

    # --- connections -----------------------------------------------------------------------------

    async def _open(self, key: _Key, target: Target, name: str | None) -> Connection:
        """Open a connection. Raises ``OSError``, also if the client is closed meanwhile."""
        if self._is_closed:
            raise ConnectionError("the connections are closed")
        connection = Connection(
            asyncio.get_running_loop().time,
            lambda free: self._put_idle(key, free),
            self._connections.discard,
        )
        self._connections.add(connection)
        try:
            await self._connector.open(target, connection, name)
            if not connection.is_open:
                raise ConnectionError("the connections are closed")
        except BaseException:
            connection.fail(ConnectionError("the connection was not established"))
            self._connections.discard(connection)
            raise
        return connection

    def _put_idle(self, key: _Key, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._idle.setdefault(key, []).append((connection, loop.time()))
        if self._sweep is None:
            self._sweep = loop.call_later(_IDLE_S, self._close_idle)

    def _take_idle(self, key: _Key) -> Connection | None:
        """Return the connection that was used last. The others become old and are closed."""
        connections = self._idle.get(key, [])
        while connections:
            connection, _ = connections.pop()
            if connection.is_open:
                return connection
        return None

    def _close_idle(self) -> None:
        """Close the connections that are idle for too long."""
        loop = asyncio.get_running_loop()
        self._sweep, now = None, loop.time()
        times: list[float] = []
        for key, connections in tuple(self._idle.items()):
            old = [each for each, since in connections if now - since >= _IDLE_S]
            for connection in old:
                connection.fail(ConnectionError("the connection was idle"))
            kept = [each for each in connections[len(old) :] if each[0].is_open]
            if kept:
                self._idle[key] = kept
                times.append(kept[0][1])
            else:
                del self._idle[key]
        if times:
            self._sweep = loop.call_later(min(times) + _IDLE_S - now, self._close_idle)


async def _response(connection: Connection, exchange: Exchange) -> HttpResponse:
    """Wait for the headers of the response, and return the response. If the caller is cancelled,
    the connection is closed."""
    try:
        await exchange.wait_for_head()
    except BaseException:
        connection.release(exchange)
        raise
    connection.hand_out(exchange)
    return HttpResponse(connection, exchange)


def _encode_head(
    method: str, target: Target, host: str, headers: tuple[tuple[str, str], ...]
) -> bytes:
    """Return the request line and the headers, except for the length of the body."""
    sent = {"host": host, **dict(headers)}
    if target.credentials is not None:
        encoded = b64encode(target.credentials.encode()).decode()
        sent.setdefault("authorization", f"Basic {encoded}")
    path = target.path
    if target.is_forwarded and target.proxy is not None:
        path = f"http://{target.authority}{path}"
        sent.update(proxy_headers(target.proxy))
    lines = "".join([f"{name}: {value}\r\n" for name, value in sent.items()])
    return f"{method} {path} HTTP/1.1\r\n{lines}".encode()


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with names in lower case. Raises ``ValueError`` for a control
    character."""
    if any(map(_CONTROL.search, _parts(headers))):
        raise ValueError("a header has a control character in it")
    return {name.lower(): value for name, value in headers.items()}


def _parts(headers: Mapping[str, str]) -> Iterable[str]:
    yield from headers
    yield from headers.values()
