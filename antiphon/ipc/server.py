"""A server for RPC calls from other processes. The calls run methods of an object in this process.

The RPC server has no authentication except file permissions. Its socket must be in a folder that
only the operating system user of this process can enter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import structlog

from antiphon.errors import AntiphonError, BackendError
from antiphon.support.fair_threads import current_tenant
from antiphon.support.tasks import BackgroundTasks

from .frames import FrameConnection
from .messages import CallMessage, MessageKind, encode, error_message
from .methods import CallableMethods, Method, error_for_caller

_log = structlog.get_logger(__name__)
_decode = msgspec.msgpack.Decoder(CallMessage).decode


class CallServer:
    """Answers RPC calls at a Unix socket.

    ``session``: creates one object per connection. The caller can call the public methods of this
    object: plain functions, coroutines, and async generators, whose items are sent one by one.
    Arguments are decoded according to the annotations of the method. When the caller disconnects,
    its unfinished calls are cancelled. Then the object's method ``on_disconnect`` is called, if it
    has one.
    """

    def __init__(self, session: Callable[[], object]) -> None:
        self._session = session
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def open(self, path: Path) -> None:
        """Listen at ``path``."""
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._connect, str(path))

    def _connect(self) -> FrameConnection:
        connection = _Connection(self._session(), self._on_end)
        self._connections.add(connection)
        self._is_idle.clear()
        return connection.frames

    def _on_end(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_idle.set()

    async def drain(self, wait_s: float) -> None:
        """Wait until all callers have disconnected, for at most ``wait_s`` seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_idle.wait(), wait_s)

    async def close(self) -> None:
        """Stop listening, close all connections and cancel all calls."""
        if self._server is not None:
            self._server.close()
        connections = tuple(self._connections)
        for connection in connections:
            connection.frames.close()
        await asyncio.gather(*(connection.end() for connection in connections))


class _Connection:
    """A connection of one caller, with its unfinished calls. ``target``: the object whose methods
    the caller can call. ``on_end``: called when the connection has closed."""

    def __init__(self, target: object, on_end: Callable[[_Connection], None]) -> None:
        self.frames = FrameConnection(self._on_frame, self._on_closed)
        self._target = target
        self._on_end = on_end
        self._calls = BackgroundTasks("call of another process")
        self._methods = CallableMethods(target)

    async def end(self) -> None:
        """Cancel the unfinished calls and wait until they have ended."""
        await self._calls.close()

    def _on_closed(self) -> None:
        self._calls.cancel_all()
        on_disconnect = getattr(self._target, "on_disconnect", None)
        if on_disconnect is not None:
            on_disconnect()
        self._on_end(self)

    def _on_frame(self, frame: bytes) -> None:
        message = _decode(frame)
        if message.kind is MessageKind.CANCEL:
            self._calls.cancel(message.call)
            return
        try:
            method = self._methods.find(message.method)
            arguments = method.decode(message.payload)
        except (AttributeError, msgspec.MsgspecError) as error:
            _log.error("a call of another process is invalid", method=message.method, exc_info=True)
            self._send_error(message.call, BackendError(str(error)))
            return
        current_tenant.set(message.tenant)  # the call works for this tenant
        if method.is_plain:
            self._call_plain(message, method, arguments)
            return
        self._calls.start(self._run(message.call, method, arguments), key=message.call)

    def _call_plain(
        self, message: CallMessage, method: Method, arguments: tuple[object, ...]
    ) -> None:
        try:
            result = method.function(*arguments)
        except Exception as error:
            self._send_error(message.call, error_for_caller(method.name, error))
            return
        if message.kind is MessageKind.CALL:
            self.frames.send(encode((MessageKind.RESULT, message.call, "", result)))

    async def _run(self, call: int, method: Method, arguments: tuple[object, ...]) -> None:
        try:
            async with aclosing(method.answers(call, arguments)) as answers:
                async for answer in answers:
                    self.frames.send(answer)
                    await self.frames.drain()
        except asyncio.CancelledError:
            self._send_error(call, BackendError("The call was cancelled."))
            raise

    def _send_error(self, call: int, error: AntiphonError) -> None:
        self.frames.send(error_message(call, error))
