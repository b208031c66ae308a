"""HTTP/1.1 for an ASGI app, on the parser of httptools.

The size of the request head, the time until it has arrived, and the rate of its body are limited.
Malformed requests are answered in the API's error format. Headers are sent together with the first
bytes of the body: a second packet would need a second system call and would wake the client a
second time, which takes longer than building headers and body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import Message, Scope

from antiphon.http.middleware.errors import error_reply
from antiphon.http.streaming.disconnect import DISCONNECT_EXTENSION
from antiphon.http.streaming.response import DIRECT_WRITE_EXTENSION

from .connections import OpenConnections, address_of, is_loopback
from .websocket_protocol import WebSocketProtocol

#: Seconds between two checks of the rate of a body.
_BODY_CHECK_S = 5.0
#: Longer than the idle time of common proxies (60 s), so that the proxy closes first.
_KEEP_ALIVE_S = 75.0
#: Largest request line plus headers. Codex sends about 4 KiB.
_MAX_HEAD_BYTES = 64 * 2**10
#: If the app has not read this many bytes of a body, no more are received.
_MAX_WAITING_BYTES = 64 * 2**10
#: Pieces of a body below this size are joined with the headers; larger ones are sent separately.
_MAX_JOINED_BYTES = 2**16

_HEAD_TOO_LARGE = (431, "The request headers are too large.", "headers_too_large")
_HEAD_TOO_SLOW = (408, "The request headers did not arrive in time.", "request_timeout")
_BODY_TOO_SLOW = (408, "The request body arrives too slowly.", "request_timeout")
_TOO_MANY_CONNECTIONS = (
    429,
    "Too many open connections from your address. Close some, then retry your request.",
    "too_many_connections",
)
_NOT_HTTP = (400, "The request is not valid HTTP.", "invalid_http")

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_WITHOUT_BODY = (204, 304)


def _do_nothing() -> None: ...


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class HttpProtocol(asyncio.Protocol):
    """One connection. Requests that arrive while another one is answered wait, and nothing more is
    read until then."""

    # Without slots, each connection would need a dictionary of its own: more than 1 KB.
    __slots__ = (
        "_address",
        "_body_start",
        "_connections",
        "_deadline",
        "_exchange",
        "_extensions",
        "_has_upgraded",
        "_head_bytes",
        "_headers",
        "_in_body",
        "_in_head",
        "_is_reading",
        "_loop",
        "_names",
        "_on_deadline",
        "_parser",
        "_paused_since",
        "_pieces",
        "_received_bytes",
        "_timer",
        "_url",
        "_waiting",
        "_writable",
        "disconnect_callbacks",
        "is_lost",
        "is_stopping",
        "on_body",
        "output",
    )

    def __init__(self, connections: OpenConnections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        #: What the parser has found of a body and the request has not got. The parser appends to it
        #: directly: a body can have millions of chunks, and a method of Python for each of them
        #: would stop the event loop for seconds.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser: Any = httptools.HttpRequestParser(self)
        # So that a request that follows one with "connection: close" does not spoil its answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        #: The request whose head arrived last, and those that wait until earlier ones are answered.
        self._exchange: _Exchange | None = None
        self._waiting: list[_Exchange] = []
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head, self._in_body = True, False
        self._has_upgraded = False
        self._head_bytes = self._received_bytes = 0
        self._address = ""
        self._is_reading = True
        self._writable: asyncio.Future[None] | None = None
        #: When ``_on_deadline`` is called, in the loop's time, and the only timer.
        self._deadline: float | None = None
        self._on_deadline: Callable[[], None] = self._end_slow_head
        self._timer: asyncio.TimerHandle | None = None
        #: When the body began to be too slow to arrive in one piece. Pauses are left out.
        self._body_start = 0.0
        self._paused_since = 0.0
        self.disconnect_callbacks: set[Callable[[], None]] = set()
        self.is_lost = self.is_stopping = False

    # --- the connection --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        client = address_of(transport.get_extra_info("peername"))
        self.output = Output(transport)
        self._extensions = {
            DIRECT_WRITE_EXTENSION: {"write": self.output.write_chunk},
            DISCONNECT_EXTENSION: {"connection": self},
        }
        #: What the scopes of all requests contain.
        self._names = {
            "client": client,
            "server": address_of(transport.get_extra_info("sockname")),
        }
        self._connections.add(self)
        self._set_deadline(self._connections.limits.head_s, self._end_slow_head)
        # OpenConnections from this machine are not counted.
        if client and self._connections.limits.per_address and not is_loopback(client[0]):
            self._address = client[0]
            if self._connections.count(self._address):
                self._refuse(*_TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._leave()
        self.resume_writing()
        for exchange in (self._exchange, *self._waiting):
            if exchange is not None:
                exchange.wake()
        for callback in tuple(self.disconnect_callbacks):
            callback()
        # Without these cycles, the connection is freed at once.
        self._parser = self._exchange = None
        self._waiting, self._extensions, self._on_deadline = [], {}, _do_nothing

    def _leave(self) -> None:
        """Leave the connection to its end, or to another protocol."""
        self._connections.remove(self)
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._address:
            self._connections.uncount(self._address)
            self._address = ""

    def eof_received(self) -> None:
        """Close the connection."""

    def pause_writing(self) -> None:
        self.output.is_paused = True

    def resume_writing(self) -> None:
        self.output.is_paused = False
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    async def drain(self) -> None:
        """Wait until the client has received enough of what was written, or is lost."""
        while self.output.is_paused and not self.is_lost:
            if self._writable is None:
                self._writable = self._loop.create_future()
            await self._connections.wait_for_client(self._writable, self.output.transport)

    def finish_request(self) -> None:
        if self._exchange is None or self._exchange.is_complete:
            self.output.close()
        else:
            self._exchange.keeps_alive = False

    def shut_down(self) -> None:
        self.finish_request()

    def stop_request(self) -> None:
        self.is_stopping = True
        for callback in tuple(self.disconnect_callbacks):
            callback()

    def close(self) -> None:
        """Close the connection when all data is sent. See ``ConnectionMonitor``."""
        self.output.close()

    # --- deadlines -------------------------------------------------------------------------------

    def _set_deadline(self, delay: float, action: Callable[[], None]) -> None:
        """Call ``action`` after ``delay`` seconds, unless the deadline is changed before. Nearly
        every deadline is, so one timer serves all: when it fires, it looks at the deadline."""
        if not delay:
            self._deadline = None
            return
        self._deadline, self._on_deadline = self._loop.time() + delay, action
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _has_deadline(self, action: Callable[[], None]) -> bool:
        return self._deadline is not None and self._on_deadline == action

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._deadline > self._loop.time():
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        else:
            self._deadline = None
            self._on_deadline()

    def _end_slow_head(self) -> None:
        """Refuse a request whose headers do not arrive in time. If the client has sent nothing,
        close the connection without a response."""
        if self._head_bytes:
            self._refuse(*_HEAD_TOO_SLOW)
        else:
            self.output.close()

    def _check_body_rate(self) -> None:
        """Refuse the request and close the connection if the request body arrives too slowly. The
        time in which the app itself pauses reading the body does not count."""
        elapsed = self._loop.time() - self._body_start
        is_slow = self._received_bytes < self._connections.limits.body_bytes_per_s * elapsed
        if is_slow and self._is_reading:
            self._refuse(*_BODY_TOO_SLOW)
        else:
            self._set_deadline(_BODY_CHECK_S, self._check_body_rate)

    # --- requests --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.output.is_closing():
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._has_upgraded:
                return self._upgrade()
        except httptools.HttpParserError:
            return self._refuse(*_NOT_HTTP)
        if self.output.is_closing():
            return
        self._pass_body()
        limits = self._connections.limits
        if self._in_head:
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._refuse(*_HEAD_TOO_LARGE)
            elif self._head_bytes and not self._has_deadline(self._end_slow_head):
                self._set_deadline(limits.head_s, self._end_slow_head)
        elif self._in_body and not self._has_deadline(self._check_body_rate):
            # Only now, because nearly every request arrives in one piece, which needs no deadline.
            self._body_start = self._loop.time()
            self._set_deadline(limits.body_grace_s, self._check_body_rate)

    def on_message_begin(self) -> None:
        self._url, self._headers = b"", []
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._deadline = None
        parser, method = self._parser, self._parser.get_method().decode("ascii")
        version = parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self._headers)
        if hosts > 1 or (not hosts and version == "1.1"):  # RFC 9112, section 3.2
            raise ValueError("a request needs one Host header")
        if parser.should_upgrade() and _wants_websocket(self._headers):
            self._has_upgraded = True
            return
        self._in_body, self._received_bytes = True, 0
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "scheme": "http",
            "method": method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "extensions": self._extensions,
            **self._names,
        }
        earlier = self._exchange
        self._exchange = exchange = _Exchange(
            self, scope, keeps_alive=version == "1.1" and parser.should_keep_alive()
        )
        if earlier is None or earlier.is_complete:
            self._start(exchange)
        else:
            self._waiting.append(exchange)
            self.pause_reading()

    def _start(self, exchange: _Exchange) -> None:
        self._connections.start(exchange.run(self._connections.app))

    def _pass_body(self) -> None:
        """Give the request what the parser has found of its body."""
        if not self._pieces:
            return
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._received_bytes += len(body)
        if self._exchange is not None and not self._has_upgraded:
            self._exchange.receive_body(body)

    def on_message_complete(self) -> None:
        self._pass_body()
        self._in_body = False
        self._deadline = None
        self._head_bytes = 0
        self._in_head = True
        if self._exchange is not None and not self._has_upgraded:
            self._exchange.receive_end()
            if self._exchange.is_complete:  # it was answered before its body had arrived
                self._set_deadline(_KEEP_ALIVE_S, self.output.close)

    def pause_reading(self) -> None:
        """Receive nothing more for now."""
        if self._is_reading and not self.output.is_closing():
            self._is_reading = False
            self._paused_since = self._loop.time()
            self.output.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading and not self.output.is_closing():
            self._is_reading = True
            self._body_start += self._loop.time() - self._paused_since
            self.output.transport.resume_reading()

    def on_answered(self, *, keeps_alive: bool) -> None:
        """Go on after an answer is complete: with the next request, if the connection stays."""
        if not keeps_alive:
            self.output.close()
        elif self._waiting:
            self._start(self._waiting.pop(0))
            if not self._waiting:
                self.resume_reading()
        else:
            self.resume_reading()
            if not self._head_bytes:
                self._set_deadline(_KEEP_ALIVE_S, self.output.close)

    def date_line(self) -> bytes:
        """Return the header ``date``."""
        return self._connections.date_line(self._loop.time())

    def _upgrade(self) -> None:
        """Hand the connection over to the protocol for WebSockets, and the request with it."""
        self._leave()
        head = [b"GET ", self._url, b" HTTP/1.1\r\n"]
        for name, value in self._headers:
            head += [name, b": ", value, b"\r\n"]
        transport = self.output.transport
        protocol = WebSocketProtocol(self._connections)
        transport.pause_reading()  # uvloop reads for the old protocol until it starts to read again
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.connection_made(transport)
        protocol.data_received(b"".join((*head, b"\r\n")))

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Send an error response instead of the app's response, and close the connection. If the
        app has already started its response, only close the connection."""
        exchange = self._exchange
        if exchange is None or exchange.is_complete or not exchange.has_started:
            body = error_reply(status, message, code=code).body
            head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            head += "connection: close\r\n\r\n"
            self.output.write(_STATUS_LINES[status] + head.encode() + bytes(body))
        self.output.close()


def _wants_websocket(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    upgrades, tokens = b"", b""
    for name, value in headers:
        if name == b"upgrade":
            upgrades = value.lower()
        elif name == b"connection":
            tokens = value.lower()
    return upgrades == b"websocket" and b"upgrade" in map(bytes.strip, tokens.split(b","))


class _Exchange:
    """One request and its answer."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_connection",
        "_has_all",
        "_has_delivered",
        "_is_chunked",
        "_is_head",
        "_left_bytes",
        "_must_continue",
        "_scope",
        "_waiter",
        "has_started",
        "is_complete",
        "keeps_alive",
    )

    def __init__(self, connection: HttpProtocol, scope: Scope, *, keeps_alive: bool) -> None:
        self._connection = connection
        self._scope = scope
        self._is_head = scope["method"] == "HEAD"
        self.keeps_alive = keeps_alive
        #: The part of the body that has arrived and that the app has not received.
        self._body: list[bytes] = []
        self._body_bytes = 0
        #: Whether the whole body has arrived, and whether the app has received it.
        self._has_all = self._has_delivered = False
        self._waiter: asyncio.Future[None] | None = None
        self._must_continue = (b"expect", b"100-continue") in scope["headers"]
        self.has_started = self.is_complete = False
        self._is_chunked = False
        #: How many bytes of the answer's body are missing, if its length was declared.
        self._left_bytes = 0

    async def run(self, app: Callable[..., Any]) -> None:
        """Let the app answer the request."""
        scope = self._scope
        del self._scope  # otherwise, an idle connection would keep all objects of its last request
        try:
            await app(scope, self.receive, self.send)
        finally:
            if not self.is_complete:  # the app answers errors itself, if it can
                self._connection.output.close()

    # --- the request -----------------------------------------------------------------------------

    def receive_body(self, piece: bytes) -> None:
        if self.is_complete:  # the app did not want it
            return
        self._body.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > _MAX_WAITING_BYTES:
            self._connection.pause_reading()
        self.wake()

    def receive_end(self) -> None:
        self._has_all = True
        self.wake()

    def wake(self) -> None:
        """Let ``receive`` look again at what has happened."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Message:
        """Return the next message for the app."""
        connection = self._connection
        if self._must_continue and not self.has_started:
            self._must_continue = False
            connection.output.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (connection.is_lost or self.is_complete) and (
            self._has_delivered or not (self._body or self._has_all)
        ):
            connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if connection.is_lost or self.is_complete:
            return {"type": "http.disconnect"}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._body_bytes = [], 0
        self._has_delivered = self._has_all
        return {"type": "http.request", "body": body, "more_body": not self._has_all}

    # --- the answer ------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send a message of the app. Waits for a slow client."""
        connection = self._connection
        if connection.output.is_paused:
            await connection.drain()
        if connection.is_lost:
            return
        if not self.has_started:
            self._start(message["status"], message.get("headers", ()))
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.has_started = True
        pieces = [_STATUS_LINES[status], self._connection.date_line()]
        line_count = 2
        length, names_connection = None, False
        for name, value in headers:
            if name == b"content-length":
                length = value
            elif name == b"connection":
                names_connection, self.keeps_alive = True, b"close" not in value
            pieces += (name, b": ", value, b"\r\n")
            line_count += 1
        if not (self.keeps_alive or names_connection):
            pieces.append(b"connection: close\r\n")
            line_count += 1
        if length is not None:
            self._left_bytes = int(length)
        elif not self._is_head and status not in _WITHOUT_BODY:
            self._is_chunked = True
            pieces.append(b"transfer-encoding: chunked\r\n")
            line_count += 1
        head = b"".join(pieces)
        if head.count(b"\n") != line_count or head.count(b"\r") != line_count or 0 in head:
            raise ValueError("a header contains a line end")
        if self._is_head:
            self._left_bytes = 0
        self._connection.output.write_head(head + b"\r\n", will_follow=self._left_bytes > 0)

    def _write(self, body: bytes, *, more: bool) -> None:
        output = self._connection.output
        if self._is_head:
            pass
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            output.write(chunk if more else chunk + b"0\r\n\r\n")
        else:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (self._left_bytes and not more):
                raise ValueError("the body has another length than declared")
            output.write(body)
        if not more:
            self.is_complete = True
            self.wake()
            self._connection.on_answered(keeps_alive=self.keeps_alive)


class Output:
    """Writes answers to a connection. Headers wait for the first bytes of the body, at most until
    the next iteration of the event loop."""

    __slots__ = ("_head", "is_closing", "is_paused", "transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_closing = transport.is_closing
        #: Whether the client has not yet received much of what was written.
        self.is_paused = False
        self._head = b""

    def write_head(self, head: bytes, *, will_follow: bool = False) -> None:
        """Write headers. ``will_follow``: a body follows for certain, so the headers wait for
        it."""
        self._head = head
        if not will_follow:
            asyncio.get_running_loop().call_soon(self._flush)

    def write(self, piece: bytes) -> None:
        """Write the next bytes of an answer."""
        if self._head:
            if len(piece) < _MAX_JOINED_BYTES:
                piece, self._head = self._head + piece, b""
            else:
                self._flush()
        if piece:
            self.transport.write(piece)

    def write_chunk(self, piece: bytes) -> bool:
        """Write a chunk of a body. Returns False and writes nothing if the chunk must wait.
        Implements ``DIRECT_WRITE_EXTENSION``.

        ``send`` needs a message, a coroutine and several checks for the same write.
        """
        # An empty chunk would end the body.
        if self.is_paused or not piece or self.is_closing():
            return False
        self.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self.transport.write(head)

    def close(self) -> None:
        """Close the connection after all data is written."""
        self._flush()
        self.transport.close()
