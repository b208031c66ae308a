"""Connections to one server over HTTP/1.1: a request goes out, its answer comes in piece by piece,
and the connection serves again.

Every token of an upstream passes here, so it does no more than that: no redirects, no cookies, no
proxies, nothing is tried twice. It knows nothing of what is asked and answered.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import httptools

__all__ = ["Answer", "Connections"]

#: Seconds after which a connection that nobody needs is ended.
_IDLE_S = 30.0
#: Bytes of a head, and of a body that nobody has read yet.
_MOST_HEAD, _MOST_UNREAD = 2**18, 2**20

_ADDRESS = re.compile(r"[\x21-\x7e]+\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class Answer:
    """An answer as it comes. ``headers`` are by their names in lower case."""

    __slots__ = ("_connection", "_error", "_pieces", "_unread", "_waiter", "headers", "status")

    def __init__(self, connection: _Connection) -> None:
        #: None: all of it has come, or no more will.
        self._connection: _Connection | None = connection
        self._error: OSError | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: Mapping[str, str] = {}

    @property
    def media_type(self) -> str:
        """Of the body, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_read(self) -> bool:
        """All of it has come and was read."""
        return self._connection is None and not self._pieces

    async def read(self) -> bytes:
        """More of the body: all that has come; nothing at its end. Raises ``OSError`` where it
        breaks off, ``TimeoutError`` where nothing comes for too long."""
        while not self._pieces:
            if self._connection is None:
                self._check()
                return b""
            await self._news()
        pieces, self._pieces, self._unread = self._pieces, [], 0
        if self._connection is not None:
            self._connection.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Leave. A connection over which more would come is ended."""
        if self._connection is not None:
            self._connection.end(ConnectionAbortedError("the answer was left"))

    # --- for the connection ----------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait for the head."""
        while not self.status:
            if self._connection is None:
                self._check()
            await self._news()

    def take(self, pieces: Sequence[bytes]) -> bool:
        """More has come. Whether that is more than is read."""
        self._pieces += pieces
        self._unread += sum(map(len, pieces))
        return self._unread > _MOST_UNREAD

    def end(self, error: OSError | None = None) -> None:
        """No more comes."""
        self._connection, self._error = None, error

    def wake(self) -> None:
        """Whoever waits for something looks again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _news(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


class _Connection(asyncio.Protocol):
    """One connection: one answer at a time."""

    def __init__(self, around: Connections, silence_s: float) -> None:
        self._around = around
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        #: Of the body, since it was last looked: the parser calls this for every chunk of it.
        self._came: list[bytes] = []
        self.on_body = self._came.append
        self._parser = httptools.HttpResponseParser(self)
        # as servers are written, not as they should be: what other clients allow for as well
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._answer: Answer | None = None
        self._headers: dict[str, str] = {}
        self._head = 0  # bytes of it
        self._whole = self._lasting = self._paused = False
        self._heard = 0.0

    def ask(self, request: bytes, body: bytes) -> Answer:
        """Send a request; its answer has not begun."""
        self._answer = answer = Answer(self)
        self._head, self._whole = 0, False
        self._heard = self._loop.time()
        self._transport.writelines((request, body))
        return answer

    def end(self, error: OSError) -> None:
        """End it. Whoever reads hears ``error``, unless all has come."""
        if self._answer is not None:
            self._answer.end(error)
            self._answer.wake()
            self._answer = None
        self._transport.abort()

    def resume(self) -> None:
        """What has come was read."""
        if self._paused:
            self._paused, self._heard = False, self._loop.time()
            self._transport.resume_reading()

    @property
    def is_usable(self) -> bool:
        """It has not ended."""
        return not self._transport.is_closing()

    # --- asyncio's protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._heard = self._loop.time()
        self._look()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        answer = self._answer
        if answer is None:
            self._transport.abort()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._take(answer)
            self._whole_or(ConnectionError("the answer is no HTTP"))
            self._transport.abort()
            return
        if not answer.status:
            self._head += len(data)
            if self._head > _MOST_HEAD:
                return self.end(ConnectionError("the head of the answer is too long"))
        self._take(answer)
        if self._whole:
            self._finish(answer)
        answer.wake()

    def _take(self, answer: Answer) -> None:
        if not self._came:
            return
        if answer.take(self._came) and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._came.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._around.gone(self)
        if self._answer is not None and self._answer.status and exc is None and self._is_open_ended:
            self._whole = True
        self._whole_or(ConnectionResetError("the connection was closed"))

    # --- httptools' ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._whole:
            raise ConnectionError("nothing was asked")
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:  # what is below comes before the answer
            self._answer.status, self._answer.headers = status, self._headers

    def on_message_complete(self) -> None:
        self._whole = self._answer is not None and self._answer.status > 0
        self._lasting = self._parser.should_keep_alive()

    # --- the end of an answer --------------------------------------------------------------------

    @property
    def _is_open_ended(self) -> bool:
        """The end of the connection is the end of the answer."""
        coding = self._headers.get("transfer-encoding", "").lower()
        return "content-length" not in self._headers and not coding.endswith("chunked")

    def _finish(self, answer: Answer) -> None:
        answer.end()
        self._answer = None
        # a server that answers early may still be reading, and leave in the midst of it
        if self._lasting and not self._transport.get_write_buffer_size():
            self.resume()
            self._around.free(self)
        else:
            self._transport.close()

    def _whole_or(self, error: OSError) -> None:
        """There is no more: the answer is whole, or broke off."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(None if self._whole else error)
            answer.wake()

    def _look(self) -> None:
        """End what is silent, or not needed, for too long. One timer a connection, not one for
        every piece that comes."""
        now = self._loop.time()
        if self._paused:
            self._heard = now
        most = _IDLE_S if self._answer is None else self._silence_s
        left = self._heard + most - now
        if left <= 0:
            return self.end(TimeoutError("nothing came"))
        self._timer = self._loop.call_later(min(left, self._silence_s, _IDLE_S), self._look)


class Connections:
    """To the server of ``url``. ``headers`` go with every request. ``connect_s``: seconds for a
    connection; ``silence_s``: the longest silence of an answer. Raises ``ValueError`` for an
    address that is none, and for headers that are none."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_s: float, silence_s: float
    ) -> None:
        parts = urlsplit(url)
        if not parts.hostname or not _ADDRESS.match(url):
            raise ValueError("it names no host, or has signs that no address has")
        if parts.username is not None:
            headers = {"authorization": _basic(parts.username, parts.password or ""), **headers}
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._tls = _tls() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        named = host if parts.port is None else f"{host}:{parts.port}"
        self._headers = _named({"host": named, **headers})
        self._fields = _fields(self._headers)
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._all: set[_Connection] = set()
        self._free: list[_Connection] = []
        self._closed = False

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer to a request, once its head is there. ``url``: of this server. ``headers``:
        besides its own, or in their place. Raises ``OSError``, ``TimeoutError`` where it takes too
        long."""
        target = url.removeprefix(self._origin) or "/"
        first = f"{method} {target} HTTP/1.1\r\n".encode()
        fields = self._fields if not headers else _fields(self._headers | _named(headers))
        length = b"content-length: %d\r\n\r\n" % len(body)
        connection = self._kept() or await self._connected()
        answer = connection.ask(b"".join((first, fields, length)), body)
        try:
            await answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        """End all of them; later requests fail."""
        self._closed = True
        for connection in list(self._all):
            connection.end(ConnectionAbortedError("the connections were closed"))
        await asyncio.sleep(0)  # until that is done

    def free(self, connection: _Connection) -> None:
        """It can serve again."""
        self._free.append(connection)

    def gone(self, connection: _Connection) -> None:
        """It has ended."""
        self._all.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    def _kept(self) -> _Connection | None:
        """The one that served last: those that are not needed grow old."""
        while self._free:
            if (connection := self._free.pop()).is_usable:
                return connection
        return None

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            joined = await self._joined(found)
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, self._silence_s),
                    sock=joined,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
            except BaseException:
                joined.close()
                raise
        self._all.add(connection)
        if self._closed:
            await self.close()
            raise ConnectionAbortedError("the connections were closed")
        return connection

    async def _joined(self, found: Sequence[tuple[Any, ...]]) -> socket.socket:
        """To the first address that answers. One that does not leaves time for the others."""
        loop, failed = asyncio.get_running_loop(), OSError("it has no address")
        for family, kind, protocol, _, address in found:
            joined = socket.socket(family, kind, protocol)
            joined.setblocking(False)
            try:
                async with asyncio.timeout(self._connect_s / len(found)):
                    await loop.sock_connect(joined, address)
                return joined
            except OSError as error:
                joined.close()
                failed = error
            except BaseException:
                joined.close()
                raise
        raise failed


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _fields(headers: Mapping[str, str]) -> bytes:
    """Headers as they are sent. Raises ``ValueError`` for one that would be more than one."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if any(map(_CONTROL.search, lines)):
        raise ValueError("a header has a control character in it")
    return "".join([f"{line}\r\n" for line in lines]).encode()


def _basic(user: str, password: str) -> str:
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
