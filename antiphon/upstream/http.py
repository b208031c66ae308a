"""HTTP connections to one server, over aiohttp.

Redirects are not followed, cookies are not stored, and responses are not decompressed. Every
failure is raised as an ``OSError``. A failed request is sent again only in one case: it was sent
over an idle connection that the server had just closed.
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
from antiphon.support.installation import needs_extra

if TYPE_CHECKING:
    import aiohttp

__all__ = ["HttpClient", "HttpResponse"]

#: Seconds after which an idle connection is closed.
_IDLE_S = 30.0
#: Maximum number of times that one request is sent again because the server had closed the
#: connection.
_MAX_REPLACED = 3
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class _Connection(Struct):
    """The state of the connection that a request uses. ``is_new``: the connection was opened for
    this request."""

    is_new: bool = False


#: The connection of the request that the current task sends.
_connection: ContextVar[_Connection] = ContextVar("upstream_connection")


class HttpResponse:
    """A response whose body is read while it arrives. The names in ``headers`` are not
    case-sensitive."""

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
        """Wait until at least one byte of the body has arrived, and return all bytes that have
        arrived. Returns b"" at the end of the body.

        Raises ``OSError`` if the connection breaks, and ``TimeoutError`` if no data arrives for too
        long.
        """
        try:
            return await self._response.content.readany()
        except Exception as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Stop reading the response. If the body is incomplete, the connection is closed."""
        self._response.close()


class HttpClient:
    """HTTP client with its own connection pool.

    ``headers``: headers that are sent with every request. ``connect_s``: maximum time to open a
    connection, in seconds. ``silence_s``: maximum time to wait for the next data from the server,
    in seconds. Raises ``SetupError`` if aiohttp is not installed, and ``ValueError`` for a header
    with a control character.
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
        #: Responses that may not have been read to their end.
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

        ``headers``: headers for this request, in addition to the client's headers. They replace
        headers with the same name. ``host``: the host name of the server, for a ``url`` with an IP
        address. Raises ``OSError``, and ``TimeoutError`` if connecting or waiting for data takes
        too long.
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
                # Servers close idle connections, many of them after 5 seconds. A request may be
                # sent at the same moment.
                is_stale = not connection.is_new and _is_disconnect(error)
                if not is_stale or attempt == _MAX_REPLACED:
                    raise _failure(error) from None
        answer = HttpResponse(response)
        self._answers.add(answer)
        return answer

    async def close(self) -> None:
        """Close all connections. After this, reading a response fails."""
        for answer in tuple(self._answers):  # aiohttp would let their readers wait
            answer.close()
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        """Return aiohttp's session. It is created at the first request, in the event loop that uses
        it. Raises ``ConnectionError`` if the client is closed."""
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

    aiohttp's tracing could report new connections as well. It is not used because it would add a
    callback to every step of a request.
    """
    if (connection := _connection.get(None)) is not None:
        connection.is_new = True
    family, kind, protocol, *_ = address
    return socket.socket(family, kind, protocol)


def _is_disconnect(error: Exception) -> bool:
    """Return whether the error means that an established connection broke before the response
    arrived."""
    import aiohttp

    return isinstance(
        error, aiohttp.ServerDisconnectedError | ConnectionError | aiohttp.ClientOSError
    ) and not isinstance(error, aiohttp.ClientConnectorError)


def _failure(error: Exception) -> Exception:
    """Convert an error of aiohttp to an ``OSError``. Other errors are returned unchanged."""
    import aiohttp

    if isinstance(error, OSError) or not isinstance(error, aiohttp.ClientError):
        return error
    return ConnectionError(str(error))
