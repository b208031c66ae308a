"""HTTP connections to one server, over aiohttp.

Redirects are not followed, cookies are not stored, and responses are not decompressed. Every
failure is an ``OSError``. A request is sent again only if it was sent over an idle connection that
the server had just closed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from weakref import WeakSet

from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.installation import needs_extra

if TYPE_CHECKING:
    import aiohttp

__all__ = ["HttpClient", "HttpResponse"]

#: Seconds after which an idle connection is closed.
_IDLE_S = 30.0
#: How many connections that the server has closed are replaced for one request.
_MAX_REPLACED = 3
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class _Connection(Struct):
    """The state of the connection that a request uses."""

    is_new: bool = False


#: The connection of the request that the current task sends.
_connection: ContextVar[_Connection] = ContextVar("upstream_connection")


class HttpResponse:
    """A response that is still being received. ``headers``: case-insensitive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def media_type(self) -> str:
        """The media type of the body, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self._response.content.at_eof()

    async def read(self) -> bytes:
        """Return all bytes that have arrived, after waiting for at least one. Return empty bytes at
        the end of the body.

        Raises ``OSError`` if the connection breaks, and ``TimeoutError`` after too long without
        data.
        """
        try:
            return await self._response.content.readany()
        except Exception as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Stop reading. Closes the connection if the body is incomplete."""
        self._response.close()


class HttpClient:
    """HTTP client with its own connection pool.

    ``headers``: sent with every request. ``connect_s``: time limit for a connection, in seconds.
    ``silence_s``: maximum time in seconds without data. Raises ``SetupError`` if aiohttp is not
    installed, and ``ValueError`` for a header with a line break.
    """

    def __init__(self, headers: Mapping[str, str], *, connect_s: float, silence_s: float) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise SetupError(
                needs_extra("The HTTP client for upstreams is not installed", "upstream")
            ) from None
        if any(_CONTROL.search(f"{name}: {value}") for name, value in headers.items()):
            raise ValueError("a header has a control character in it")
        self._headers = headers
        self._times = (connect_s, silence_s)
        self._session: aiohttp.ClientSession | None = None
        #: Answers that may not have been read to their end.
        self._answers: WeakSet[HttpResponse] = WeakSet()

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

        ``headers``: added to the headers of the client; they replace headers of the same name.
        ``host``: the host name of the server, for a ``url`` with an IP address. Raises ``OSError``,
        and ``TimeoutError`` if connecting or waiting for data takes too long.
        """
        session = self._open()
        name = None
        if host is not None:
            headers = {**(headers or {}), "host": host}
            name = urlsplit(f"//{host}").hostname if url.startswith("https:") else None
        for attempt in range(_MAX_REPLACED + 1):
            connection = _Connection()
            _connection.set(connection)
            try:
                response = await session.request(
                    method,
                    url,
                    data=body or None,
                    headers=headers,
                    allow_redirects=False,
                    server_hostname=name,
                )
                break
            except Exception as error:
                # Servers close idle connections, many after 5 seconds: a request may cross that.
                is_stale = not connection.is_new and _is_disconnect(error)
                if not is_stale or attempt == _MAX_REPLACED:
                    raise _failure(error) from None
        answer = HttpResponse(response)
        self._answers.add(answer)
        return answer

    async def close(self) -> None:
        """Close all connections. Reading a response fails from then on."""
        for answer in tuple(self._answers):  # aiohttp would leave them waiting
            answer.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """The session, created in the event loop that uses it."""
        import aiohttp

        if self._session is not None and self._session.closed:
            raise ConnectionError("the connections are closed")
        if self._session is None:
            connect_s, silence_s = self._times
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_IDLE_S, socket_factory=_open_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=connect_s, sock_read=silence_s
                ),
                auto_decompress=False,
            )
        return self._session


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Open a socket as aiohttp does, and record that the current request uses a new connection.

    aiohttp's own tracing also reports reused connections. It is not used, because it sends a signal
    for every other step of a request, too.
    """
    if (connection := _connection.get(None)) is not None:
        connection.is_new = True
    family, kind, protocol, *_ = address
    return socket.socket(family, kind, protocol)


def _is_disconnect(error: Exception) -> bool:
    """Whether the error means that an established connection broke before the response arrived."""
    import aiohttp

    return isinstance(
        error, aiohttp.ServerDisconnectedError | ConnectionError | aiohttp.ClientOSError
    ) and not isinstance(error, aiohttp.ClientConnectorError)


def _failure(error: Exception) -> Exception:
    """The error as an ``OSError``, without aiohttp's types."""
    import aiohttp

    if isinstance(error, OSError) or not isinstance(error, aiohttp.ClientError):
        return error
    return ConnectionError(str(error))
