"""HTTP connections to the servers of one upstream.

No redirects, cookies, decompression or retries. Every failure is an ``OSError``.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from .connection import HttpConnection, HttpResponse

__all__ = ["HttpClient", "HttpResponse"]

#: Seconds after which an idle connection is closed.
_IDLE_S = 30.0
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
#: Characters of a URL that are sent as they are (RFC 3986).
_URL_CHARACTERS = "/?%:@!$&'()*+,;=~[]"


class _Address(Struct, frozen=True):
    """Where a request is sent to. ``tls_name``: the name in the server's certificate; None without
    TLS."""

    host: str
    port: int
    tls_name: str | None


class _Target(Struct, frozen=True):
    """The parts of a URL. ``headers``: those that follow from it."""

    address: _Address
    path: str
    headers: dict[str, str]


class HttpClient:
    """The connections to the servers of one upstream.

    ``headers``: sent with every request, with lower-case names. ``connect_s``: seconds for a
    connection. ``silence_s``: the longest time in seconds without data. Raises ``ValueError`` for a
    header with a line break.
    """

    def __init__(self, headers: Mapping[str, str], *, connect_s: float, silence_s: float) -> None:
        self._headers = {name.lower(): value for name, value in headers.items()}
        _encode_headers(self._headers)
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._tls: ssl.SSLContext | None = None
        self._is_closed = False
        #: Connections without a request, the latest one last, and when each became idle.
        self._idle: dict[_Address, list[tuple[HttpConnection, float]]] = {}
        self._connections: dict[HttpConnection, _Address] = {}
        self._idle_timer: asyncio.TimerHandle | None = None

    async def request(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        host: str | None = None,
    ) -> HttpResponse:
        """Send a request and return the response once its headers have arrived. ``headers``: with
        lower-case names; added to the client's, or replacing them. ``host``: the server's name, if
        ``url`` has its IP address. Raises ``OSError``; ``TimeoutError`` if it takes too long.
        """
        try:
            target = _parse_url(url, host)
        except ValueError as error:
            raise ConnectionError(f"invalid URL: {error}") from None
        sent = {**target.headers, **self._headers, **(headers or {})}
        if body or method == "POST":
            sent["content-length"] = str(len(body))
        head = f"{method} {target.path} HTTP/1.1\r\n".encode() + _encode_headers(sent)
        connection = self._pop_idle(target.address) or await self._connect(target.address)
        response = connection.send(head, body)
        try:
            await response.wait_for_head()
        except BaseException:
            response.close()
            raise
        return response

    async def close(self) -> None:
        """Close all connections. Reading a response fails from then on."""
        self._is_closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self._connections):
            connection.close()

    async def _connect(self, address: _Address) -> HttpConnection:
        if self._is_closed:
            raise ConnectionError("the connections are closed")
        if address.tls_name is not None and self._tls is None:
            self._tls = await asyncio.to_thread(_tls_context)
        async with asyncio.timeout(self._connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._silence_s, self._on_free, self._on_lost),
                address.host,
                address.port,
                ssl=None if address.tls_name is None else self._tls,
                server_hostname=address.tls_name,
            )
        self._connections[connection] = address
        if self._is_closed:
            connection.close()
            raise ConnectionError("the connections are closed")
        return connection

    # --- idle connections ------------------------------------------------------------------------

    def _pop_idle(self, address: _Address) -> HttpConnection | None:
        """Return the connection that was used last."""
        idle = self._idle.get(address)
        return idle.pop()[0] if idle else None

    def _on_free(self, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(self._connections[connection], [])
        idle.append((connection, loop.time()))
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(_IDLE_S, self._close_idle)

    def _on_lost(self, connection: HttpConnection) -> None:
        address = self._connections.pop(connection, None)
        if address is not None and (idle := self._idle.get(address)):
            self._idle[address] = [each for each in idle if each[0] is not connection]

    def _close_idle(self) -> None:
        """Close the connections that were idle for long."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_S
        for idle in list(self._idle.values()):
            for connection, since in list(idle):
                if since <= oldest:
                    connection.close()
        self._idle_timer = None
        if any(self._idle.values()):
            self._idle_timer = loop.call_later(_IDLE_S, self._close_idle)


@lru_cache(256)
def _parse_url(url: str, host: str | None) -> _Target:
    """Parse a URL. ``host``: the name and port in place of its own, for the server to see."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    name = parts.hostname or ""
    seen = urlsplit(f"//{host}") if host is not None else parts
    headers = {"host": seen.netloc.rpartition("@")[2].encode("idna").decode()}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Target(
        address=_Address(
            host=name,
            port=parts.port or (443 if is_tls else 80),
            tls_name=(seen.hostname or name) if is_tls else None,
        ),
        path=quote(path, safe=_URL_CHARACTERS),
        headers=headers,
    )


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode a header section. Raises ``ValueError`` for a header with a control character."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if _CONTROL.search("".join(lines)):
        raise ValueError("a header has a control character in it")
    return "\r\n".join((*lines, "", "")).encode()


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
