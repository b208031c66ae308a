"""A client for RPC calls to another process, for use in threads. Each call blocks its thread."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from antiphon.errors import AntiphonError, BackendError

from .frames import LENGTH_BYTES, encode_length, frame_length
from .messages import CallMessage, MessageKind, call_message, decode_error

_decode = msgspec.msgpack.Decoder(CallMessage).decode


class BlockingClient:
    """Calls methods of an object in another process. ``path``: the Unix socket at which the other
    process listens. ``on_lost``: creates the error to raise when the connection of a call is lost.

    A call blocks its thread until the result arrives, so the methods that are called must return
    quickly. Concurrent calls use separate connections.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_lost: Callable[[], AntiphonError] = lambda: BackendError("The connection is lost."),
    ) -> None:
        self._path = str(path)
        self._on_lost = on_lost
        #: Open connections that no thread uses.
        self._idle: deque[socket.socket] = deque()

    def call(self, method: str, *arguments: object, returns: object = None) -> Any:
        """Call a method of the other process. Returns its result, decoded as the type ``returns``.
        Raises the method's error. If the connection is lost, raises the error that ``on_lost``
        creates."""
        payload = call_message(1, method, arguments)
        try:
            message = _decode(self._exchange(encode_length(payload) + payload))
        except OSError:
            raise self._on_lost() from None
        if message.kind is MessageKind.ERROR:
            raise decode_error(message.payload)
        return msgspec.msgpack.decode(message.payload, type=returns)

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, frame: bytes) -> bytes:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._exchange_over(self._connect(), frame)
        try:
            return self._exchange_over(connection, frame)
        except OSError:  # perhaps the server was started again
            self.close()
            return self._exchange_over(self._connect(), frame)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            raise
        return connection

    def _exchange_over(self, connection: socket.socket, frame: bytes) -> bytes:
        try:
            answer = _send_and_receive(connection, frame)
        except OSError:
            connection.close()
            raise
        self._idle.append(connection)
        return answer


def _send_and_receive(connection: socket.socket, frame: bytes) -> bytes:
    connection.sendall(frame)
    return _receive(connection, frame_length(_receive(connection, LENGTH_BYTES)))


def _receive(connection: socket.socket, length: int) -> bytes:
    received = bytearray(length)
    view = memoryview(received)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise ConnectionResetError
        view = view[count:]
    return bytes(received)
