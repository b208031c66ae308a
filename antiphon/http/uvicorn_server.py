"""The process's end of the wire: sockets, signals and uvicorn, and an end that loses nothing.

It serves whatever ASGI app it is given, says nothing itself, and knows no routes.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from antiphon.errors import SetupError
from antiphon.http.middleware.errors import error_reply
from antiphon.http.streaming.disconnect import DEPARTURES
from antiphon.http.streaming.response import STRAIGHT, DirectWrite

__all__ = ["bind", "run", "serve"]

T = TypeVar("T")

_BACKLOG = 2048

#: Longer than the idle time of common proxies (60 s), so that it is they who close.
_KEEP_ALIVE_S = 75

#: Between pings of a WebSocket, and how long a pong may take.
_PING_S = 20.0

#: How long readers may take to fetch the end of their streams once all runs are over.
_FLUSH_S = 5

#: Request line and headers. Codex sends some 4 KiB.
_MAX_HEAD_BYTES = 64 * 2**10

_HEAD_TOO_LARGE = (431, "The request headers are too large.", "headers_too_large")
_NOT_HTTP = (400, "We could not parse the HTTP of your request.", "invalid_http")

#: Allocations between looks for garbage. Python's 700 are a few tokens' worth.
_GARBAGE = 10_000

#: Bytes that are rather copied than sent in a packet of their own.
_SMALL = 2**16

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

#: Ends ``serve`` when the runs are over: takes the seconds they may still have.
Drain = Callable[[float], Awaitable[None]]


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of ``host``; port 0 picks one free port for all.

    To be called before anything slow: clients that come early wait in the backlog. Raises
    ``SetupError`` in one line when it cannot be.
    """
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
            sockets.append(_listener(family, (address[0], chosen, *address[2:])))
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno in _NO_SUCH_ADDRESS:
                absent = error  # "localhost" names ::1 even where there is no IPv6
                continue
            for listener in sockets:
                listener.close()
            raise SetupError(_why(error, host, port)) from None
    if absent is not None and not sockets:
        raise SetupError(_why(absent, host, port))
    return sockets


def _listener(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _why(error: OSError | OverflowError, host: str, port: int) -> str:
    if isinstance(error, OverflowError):
        return f"port {port} is not between 0 and 65535"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: stop what listens there or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} is not permitted to this user: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    *,
    drain: Drain,
    grace_s: float = 30.0,
    started: Callable[[], None] = lambda: None,
    max_frame_bytes: int = 64 * 2**20,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop accepting, let what runs end (``drain(grace_s)``)
    and return. A second signal cuts the grace short. Closes the sockets. ``started`` is called
    once requests are answered and signals heard. ``max_frame_bytes``: of a WebSocket's message."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="websockets-sansio",
        ws_max_size=max_frame_bytes,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        # Who is asked for is not ours to tell from headers: see ``guard``.
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_FLUSH_S,
    )
    with _calm_collector():
        await _Server(config, drain, grace_s, started).serve(sockets=list(sockets))


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on uvloop, where there is one."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def _calm_collector() -> Iterator[None]:
    """What is there by now stays as long as the server does: the garbage collector shall not walk
    through it in the midst of streams, which takes tens of milliseconds."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _Protocol(HttpToolsProtocol):
    """uvicorn's, with an end to the request head (the parser gathers any number of bytes), refusals
    in the API's shape, a short way for the pieces of streams, heads that do not travel alone, and a
    word to who wants to know that the client has left.
    """

    _head = 0
    _in_head = True
    #: The piece that is read now began with the end of another request.
    _follows = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = _Joined(transport)
        self.watching: set[Callable[[], None]] = set()
        self.is_lost = False
        self._extensions = {
            STRAIGHT: {"write": _straight(self._answers, self.flow)},
            DEPARTURES: {"connection": self},
        }

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True
        for tell in tuple(self.watching):
            tell()

    def on_message_begin(self) -> None:
        self._head = 0
        self._in_head = True
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None:  # none for a WebSocket
            self.cycle.transport = self._answers  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        self._follows = True
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._follows = False
        super().data_received(data)
        if self._in_head and not self._follows:
            self._head += len(data)
            if self._head > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(*_HEAD_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*_NOT_HTTP)

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Where there is no request yet that an app could answer."""
        body = error_reply(status, message, code=code).body
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self._answers.write(STATUS_LINE[status] + head.encode() + b"connection: close\r\n\r\n")
        self._answers.write(bytes(body))
        self._answers.close()


class _Joined:
    """Where uvicorn writes the answers of a connection: their heads wait for what is written next,
    for a step of the loop. To send a packet and wake its reader costs more than to make both."""

    __slots__ = ("_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, piece: bytes) -> None:
        """More of an answer."""
        if self._head:
            if len(piece) < _SMALL:
                piece, self._head = self._head + piece, b""
            self._alone()
        elif piece[:9] == b"HTTP/1.1 ":  # it may be a view of bytes
            self._head = piece
            asyncio.get_running_loop().call_soon(self._alone)
            return
        self._transport.write(piece)

    def _alone(self) -> None:
        """What follows the head takes longer, or is too much."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """End the connection, behind what was written."""
        self._alone()
        self._transport.close()


def _straight(answers: _Joined, flow: FlowControl) -> DirectWrite:
    """The way past uvicorn's ``send``, which does the same with a message, a coroutine and a dozen
    questions: for every token that is more than all the rest of it."""
    is_closing = answers.is_closing

    def write(piece: bytes) -> bool:
        if flow.write_paused or is_closing() or not piece:  # an empty one ends the body
            return False
        answers.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    return write


class _Server(uvicorn.Server):
    """uvicorn with our end: it would cut streams after a timeout, and die of the signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        grace_s: float,
        started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._grace_s = grace_s
        self._announce = started
        self._hurry = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            if not isinstance(connection, WebSocketsSansIOProtocol):  # those are cut at once
                connection.shutdown()
        await self._end_runs()
        await super().shutdown(sockets)

    async def _end_runs(self) -> None:
        drained = asyncio.ensure_future(self._drain(self._grace_s))
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((drained, hurried), return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                drained.cancel()
                await self._drain(0)
            else:
                drained.result()
        finally:
            hurried.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if self.should_exit:
                loop.call_soon_threadsafe(self._hurry.set)
            self.should_exit = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)
