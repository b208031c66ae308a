"""The uvicorn server: sockets, signals, and a shutdown that waits for runs to end.

The server can serve any ASGI app.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal, TypeVar

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from antiphon.errors import SetupError
from antiphon.http.middleware.errors import error_reply
from antiphon.http.streaming.disconnect import DISCONNECT_EXTENSION
from antiphon.http.streaming.response import DIRECT_WRITE_EXTENSION

__all__ = [
    "ConnectionLimits",
    "bind",
    "frozen_gc",
    "has_terminal",
    "raise_file_limit",
    "run",
    "serve",
]

T = TypeVar("T")

_BACKLOG = 2048

#: Seconds between two checks of the rate of a body.
_BODY_CHECK_S = 5.0

#: Limit of open files that the server sets if the system permits any number.
_MAX_FILES = 2**20

#: Longer than the idle time of common proxies (60 s), so that the proxy closes first.
_KEEP_ALIVE_S = 75

#: Seconds between the pings of a WebSocket, and seconds a pong may take.
_PING_S = 20.0

#: Seconds that readers may take to fetch the end of their streams after all runs have ended.
_FLUSH_S = 5

#: Largest request line plus headers. Codex sends about 4 KiB.
_MAX_HEAD_BYTES = 64 * 2**10

_HEAD_TOO_LARGE = (431, "The request headers are too large.", "headers_too_large")
_HEAD_TOO_SLOW = (408, "The request headers did not arrive in time.", "request_timeout")
_BODY_TOO_SLOW = (408, "The request body arrives too slowly.", "request_timeout")
_TOO_MANY_CONNECTIONS = (
    429,
    "Too many open connections from your address. Close some, then retry your request.",
    "too_many_connections",
)
_NOT_HTTP = (400, "The request is not valid HTTP.", "invalid_http")

#: Allocations between garbage collections. Python's default, 700, is reached every few tokens.
_GC_THRESHOLD = 10_000

#: Chunks below this size are joined with the headers; larger chunks are sent separately.
_MAX_JOINED_BYTES = 2**16

#: Signals that drain and stop the server. SIGHUP also comes when its terminal is closed.
_STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

#: Waits for the runs to end. Its argument is the number of seconds they may take.
Drain = Callable[[float], Awaitable[None]]


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one client's connections. They stop slow clients from using all resources of the
    server. A limit of 0 means no limit.

    - ``head_s``: maximum seconds until the request line and headers have arrived.
    - ``body_grace_s``: seconds until the data rate of the request body is checked for the first
      time.
    - ``body_bytes_per_s``: minimum average data rate of the request body.
    - ``per_address``: maximum number of open connections from one IP address; loopback addresses
      have no limit.
    """

    head_s: float = 30.0
    body_grace_s: float = 30.0
    body_bytes_per_s: float = 500.0
    per_address: int = 2048


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the maximum that the system permits.

    Every connection and every stream needs an open file. The common soft limit of 1,024 is too low
    for a busy server.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS permits less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(
    host: str, port: int, *further_ports: int, reuse_port: bool = False
) -> list[socket.socket]:
    """Open listening sockets on every address of ``host``, those of ``port`` first. With port 0,
    all sockets of this port get the same free port. Raises ``SetupError`` with a one-line message.

    Call this function before slow startup work. Clients that connect during this work then wait in
    the backlog and are not refused. ``reuse_port``: allow other sockets to bind the same port;
    Linux spreads the connections over all these sockets.
    """
    sockets: list[socket.socket] = []
    try:
        for each in (port, *further_ports):
            sockets += _bind_port(host, each, reuse_port)
    except SetupError:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _bind_port(host: str, port: int, reuse_port: bool) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SetupError(f"cannot listen on {host}: {error.strerror or error}") from None
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
        chosen = sockets[0].getsockname()[1] if sockets else port
        try:
            sockets.append(_listener(family, (address[0], chosen, *address[2:]), reuse_port))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno in _NO_SUCH_ADDRESS:
                absent = error  # "localhost" names ::1 even where there is no IPv6
                continue
            for listener in sockets:
                listener.close()
            raise SetupError(_bind_error(error, host, port)) from None
    if absent is not None and not sockets:
        raise SetupError(_bind_error(absent, host, port))
    return sockets


def _listener(family: int, address: tuple[object, ...], reuse_port: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # on Windows it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_error(error: OSError | OverflowError, host: str, port: int) -> str:
    if isinstance(error, OverflowError):
        return f"port {port} is not between 0 and 65535"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop its server or choose another port"
    if error.errno == errno.EACCES:
        return f"this user may not open port {port} on {host}: choose a port above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    drain: Drain,
    grace_s: float = 30.0,
    started: Callable[[], None] = lambda: None,
    on_hangup: Callable[[], None] | None = None,
    max_frame_bytes: int = 64 * 2**20,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP (but see ``on_hangup``). Then accept no new
    connections, wait for the runs (responses in progress), close the sockets and return.

    - ``drain``: the function that waits for the runs to end.
    - ``grace_s``: the seconds that ``drain`` may take. A second signal ends this time early.
    - ``started`` is called when the server is ready to answer requests and to handle signals.
    - ``on_hangup``: a function that is called at a SIGHUP instead of stopping the server. A SIGHUP
      that is sent because the terminal was closed still stops the server, and the function is not
      called. If ``on_hangup`` is None, every SIGHUP stops the server.
    - ``max_frame_bytes``: maximum size of a WebSocket message.
    - ``limits``: limits of each client's connections.
    """
    config = uvicorn.Config(
        app,
        http=_limited_protocol(limits or ConnectionLimits()),
        ws=_WebSocketProtocol,
        ws_max_size=max_frame_bytes,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        # Forwarded headers are untrusted here: see ``middleware.auth.is_local``.
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_S,
    )
    with frozen_gc():
        server = _Server(config, drain, grace_s, started, on_hangup)
        await server.serve(sockets=list(sockets))


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like ``asyncio.run``, but on uvloop. On Windows, which has no uvloop,
    asyncio's own event loop is used."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def frozen_gc() -> Iterator[None]:
    """A context manager. Within its block, objects that existed before are excluded from garbage
    collection, and collections are less frequent.

    A full collection takes tens of milliseconds and would delay the running streams.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _limited_protocol(limits: ConnectionLimits) -> type[_Protocol]:
    """Return the protocol class of one server. uvicorn creates one instance per connection. All
    instances share ``limits`` and the number of open connections per client address."""
    members = {"limits": limits, "open_by_address": Counter(), "__slots__": ()}
    return type("_LimitedProtocol", (_Protocol,), members)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a Unix socket
        return True


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with additions:

    - It limits the size of the request head, because httptools buffers without limit.
    - It limits the time until the head of a request has arrived, the time for its body, and the
      number of connections from one IP address.
    - It answers malformed requests in the API's error format.
    - It offers two ASGI extensions. One writes response data directly to the connection, the other
      reports that the client has disconnected.
    - It sends response headers together with the first chunk.
    """

    # Python lets objects of a class share the keys of their attribute dictionaries only up to 30
    # attributes. uvicorn's attributes and ours together are more. Without slots, each connection
    # would need a dictionary of its own: 1.3 KB.
    __slots__ = (
        "_address",
        "_body_bytes",
        "_body_start",
        "_continues_request",
        "_deadline",
        "_extensions",
        "_head_bytes",
        "_in_body",
        "_in_head",
        "_output",
        "disconnect_callbacks",
        "is_lost",
    )

    limits: ConnectionLimits
    #: Open connections by address, of the whole server.
    open_by_address: Counter[str]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _FlowControl(transport)
        self.pipeline = _ShortQueue()  # type: ignore[assignment]
        self._output = _BufferedTransport(transport, self.flow)
        self._head_bytes = self._body_bytes = 0
        self._in_head, self._in_body = True, False
        #: When the deadline for the body was set, in the loop's time.
        self._body_start = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._address = ""
        #: Whether the data that is being parsed began with the end of another request.
        self._continues_request = False
        self.disconnect_callbacks: set[Callable[[], None]] = set()
        self.is_lost = False
        self._extensions = {
            DIRECT_WRITE_EXTENSION: {"write": self._output.write_chunk},
            DISCONNECT_EXTENSION: {"connection": self},
        }
        self._count_connection()
        self._set_head_deadline()

    def _count_connection(self) -> None:
        """Add the connection to the number of open connections of its client address. Refuse the
        connection if the address has too many. Connections from this machine are not counted."""
        address = self.client[0] if self.client else ""
        if not self.limits.per_address or not address or _is_loopback(address):
            return
        self._address = address
        self.open_by_address[address] += 1
        if self.open_by_address[address] > self.limits.per_address:
            self._refuse(*_TOO_MANY_CONNECTIONS)

    def close(self) -> None:
        """Close the connection when all data is sent. See ``ConnectionMonitor``."""
        self._output.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True
        self._end_limits()
        for callback in tuple(self.disconnect_callbacks):
            callback()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._in_head = True
        self._clear_deadline()
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._clear_deadline()
        super().on_headers_complete()
        if self.cycle is not None:  # a WebSocket has no cycle
            self.cycle.transport = self._output  # type: ignore[assignment]
            self.cycle.message_event = _RareEvent()
            self._in_body = True
            self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._continues_request = True
        self._in_body = False
        self._clear_deadline()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._end_limits()  # another protocol takes over the connection
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        self._continues_request = False
        super().data_received(data)
        if self._in_head and not self._continues_request:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(*_HEAD_TOO_LARGE)
        # Only now, because nearly every request arrives in one piece, which needs no deadline.
        if self._deadline is None and not self.transport.is_closing():
            if self._in_head:
                self._set_head_deadline()
            elif self._in_body:
                self._set_body_deadline()

    def _set_head_deadline(self) -> None:
        if self.limits.head_s:
            self._deadline = self.loop.call_later(self.limits.head_s, self._end_slow_head)

    def _set_body_deadline(self) -> None:
        if self.limits.body_grace_s:
            self._body_start = self.loop.time()
            delay = self.limits.body_grace_s
            self._deadline = self.loop.call_later(delay, self._check_body_rate)

    def _end_slow_head(self) -> None:
        """Refuse a request whose headers do not arrive in time. If the client has sent nothing,
        close the connection without a response."""
        if self.scope is None:
            self._output.close()
        else:
            self._refuse(*_HEAD_TOO_SLOW)

    def _end_limits(self) -> None:
        """Stop the deadlines of the connection, and subtract the connection from the number of open
        connections of its client address."""
        self._clear_deadline()
        if self._address:
            self.open_by_address[self._address] -= 1
            if not self.open_by_address[self._address]:
                del self.open_by_address[self._address]
            self._address = ""

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_body_rate(self) -> None:
        """Refuse the request and close the connection if the request body arrives too slowly. While
        the app itself pauses reading the body, a slow body is allowed."""
        elapsed = self.loop.time() - self._body_start
        is_slow = self._body_bytes < self.limits.body_bytes_per_s * elapsed
        if is_slow and not self.flow.read_paused:
            self._refuse(*_BODY_TOO_SLOW)
            return
        self._deadline = self.loop.call_later(_BODY_CHECK_S, self._check_body_rate)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*_NOT_HTTP)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Send an error response instead of the app's response, and close the connection. If the
        app has already started its response, only close the connection."""
        if self.cycle is not None and self.cycle.response_started and not self._in_head:
            self._output.close()
            return
        body = error_reply(status, message, code=code).body
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._output.write(STATUS_LINE[status] + head.encode() + b"connection: close\r\n\r\n")
        self._output.write(bytes(body))
        self._output.close()


class _WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol without a wrong log line: uvicorn logs an error if the app
    refuses the handshake with an HTTP response (extension ``websocket.http.response`` of ASGI)."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:
            self.handshake_complete = True


class _ShortQueue(list[Any]):
    """The queue of a connection's pipelined requests. It is empty for nearly all connections. An
    empty ``deque`` takes 0.7 KB; this list takes much less."""

    def appendleft(self, entry: object) -> None:
        """Insert an entry at the front. ``pop`` removes entries from the end, so it returns this
        entry after all other entries."""
        self.insert(0, entry)


class _RareEvent(asyncio.Event):
    """An event for which tasks seldom wait. Its queue of waiting tasks takes 0.7 KB, so the queue
    is created only when the first task waits."""

    def __init__(self) -> None:
        self._waiters: Collection[asyncio.Future[bool]] = ()  # type: ignore[assignment]
        self._value = False

    async def wait(self) -> Literal[True]:
        if not self._value and not self._waiters:
            self._waiters = deque()
        return await super().wait()


class _FlowControl(FlowControl):
    """uvicorn's flow control of a connection. It uses a ``_RareEvent`` instead of an
    ``asyncio.Event``, so that each connection takes less memory."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._is_writable_event = _RareEvent()
        self._is_writable_event.set()


class _BufferedTransport:
    """A transport for responses. It holds headers back until the next write, at most until the next
    iteration of the event loop.

    Headers and body are then sent in one packet. A second packet would need a second system call
    and would wake the client a second time. Both together take longer than building headers and
    body.
    """

    __slots__ = ("_flow", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, piece: bytes) -> None:
        """Write the next bytes of a response."""
        if self._head:
            self._write_joined(piece)
        elif piece[:9] == b"HTTP/1.1 ":  # not startswith: piece may be a memoryview
            self._head = piece
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._transport.write(piece)

    def write_chunk(self, piece: bytes) -> bool:
        """Write a chunk of a body. Returns False and writes nothing if the chunk must wait.
        Implements ``DIRECT_WRITE_EXTENSION``.

        uvicorn's ``send`` needs a message, a coroutine and a dozen checks for the same write. These
        steps would be the larger part of the CPU time per token.
        """
        # An empty chunk would end the body.
        if self._flow.write_paused or not piece or self.is_closing():
            return False
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        if self._head:
            self._write_joined(chunk)
        else:
            self._transport.write(chunk)
        return True

    def _write_joined(self, piece: bytes) -> None:
        """Write the response headers that were held back, then ``piece``, the first bytes of the
        body. If ``piece`` is short, both are sent in one write."""
        if len(piece) < _MAX_JOINED_BYTES:
            piece, self._head = self._head + piece, b""
        self._flush()
        self._transport.write(piece)

    def _flush(self) -> None:
        """Send the response headers if they are still held back. They are held back so that the
        headers and the first bytes of the body can be sent together."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Close the connection after all data is written."""
        self._flush()
        self._transport.close()


class _Server(uvicorn.Server):
    """uvicorn's server with a graceful shutdown: it accepts no new connections and calls ``drain``
    to wait for the runs before it closes the open connections.

    Without this class, uvicorn would not wait for the runs: it would cut streams after a timeout.
    Then it would raise the signal again, which would end the process.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        grace_s: float,
        started: Callable[[], None],
        on_hangup: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._on_hangup = on_hangup
        self._has_terminal = has_terminal()
        self._drain = drain
        self._grace_s = grace_s
        self._on_started = started
        self._force_exit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            # shutdown() would cut a WebSocket.
            if not isinstance(connection, WebSocketsSansIOProtocol):
                connection.shutdown()
        await self._drain_runs()
        await super().shutdown(sockets)

    async def _drain_runs(self) -> None:
        drained = asyncio.ensure_future(self._drain(self._grace_s))
        forced = asyncio.ensure_future(self._force_exit.wait())
        try:
            await asyncio.wait((drained, forced), return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                drained.cancel()
                await self._drain(0)
            else:
                drained.result()
        finally:
            forced.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if self._is_reload(number):
                loop.call_soon_threadsafe(self._on_hangup or _do_nothing)
                return
            if self.should_exit:
                loop.call_soon_threadsafe(self._force_exit.set)
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def _is_reload(self, number: int) -> bool:
        """Return whether a signal asks to reload the settings. Only a SIGHUP asks for a reload, and
        only if ``on_hangup`` is set. A SIGHUP that is sent because the terminal was closed asks to
        stop the server."""
        is_hangup = self._on_hangup is not None and number == getattr(signal, "SIGHUP", None)
        return is_hangup and has_terminal() == self._has_terminal


def _do_nothing() -> None: ...


def has_terminal() -> bool:
    """Return whether the process has a controlling terminal. Returns False after this terminal was
    closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
