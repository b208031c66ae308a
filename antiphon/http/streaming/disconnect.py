"""Cancel a block of code when the client disconnects.

The task that runs the block is cancelled in the same way as ``asyncio.timeout`` cancels a task.
Antiphon's own server reports a lost connection through an ASGI extension
(``DISCONNECT_EXTENSION``). On any other ASGI server, a second task waits for the message
``http.disconnect``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from starlette.types import Receive, Scope

from antiphon.errors import ServerStopped
from antiphon.http.middleware.request_context import ClientDisconnected

#: ASGI extension of Antiphon's server. Its ``connection`` is a ``ConnectionMonitor``.
DISCONNECT_EXTENSION = "antiphon.disconnect"


class ConnectionMonitor(Protocol):
    """The state of a connection. When the connection is lost, ``is_lost`` is true and all
    ``disconnect_callbacks`` are called. When the server stops and can wait no longer, they are
    called too, and ``is_stopping`` is true."""

    disconnect_callbacks: set[Callable[[], None]]
    is_lost: bool
    is_stopping: bool

    def close(self) -> None:
        """Close the connection when all data is sent."""


async def cut_off(scope: Scope) -> None:
    """Close the connection of a response that has started and cannot be completed. Its client sees
    that the response is truncated. Other servers than Antiphon's do this by themselves."""
    extension = scope.get("extensions", {}).get(DISCONNECT_EXTENSION, {})
    connection: ConnectionMonitor | None = extension.get("connection")
    if connection is not None and not connection.is_lost:
        lost = asyncio.Event()
        connection.disconnect_callbacks.add(lost.set)
        connection.close()
        await lost.wait()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class CancelOnDisconnect:
    """``async with CancelOnDisconnect(scope, receive):`` cancels the block and raises
    ``ClientDisconnected`` when the client disconnects, and ``ServerStopped`` when the server stops.

    Read the request's body before the block, and send the last chunk of the response after the
    block. Otherwise an ASGI server may report the normal end of the response as a disconnect.
    """

    __slots__ = ("_cancelling", "_connection", "_disconnected", "_receive", "_task", "_watcher")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        extension = scope.get("extensions", {}).get(DISCONNECT_EXTENSION, {})
        self._connection: ConnectionMonitor | None = extension.get("connection")
        self._receive = receive
        self._disconnected = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        if self._connection is None:
            # Ends with the request, but the block must not wait for ``receive`` to notice it.
            self._watcher = asyncio.create_task(_wait_for_disconnect(self._receive))
            self._watcher.add_done_callback(self._on_receive_end)
            return
        self._connection.disconnect_callbacks.add(self._on_disconnect)
        if self._connection.is_lost:
            self._on_disconnect()

    def _on_receive_end(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled():
            watcher.exception()  # a receive that raises means that the client is lost, too
            self._on_disconnect()

    def _on_disconnect(self) -> None:
        self._disconnected = True
        self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.disconnect_callbacks.discard(self._on_disconnect)
        if self._watcher is not None:
            self._watcher.remove_done_callback(self._on_receive_end)
            self._watcher.cancel()
        if (
            self._disconnected
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            if self._connection is not None and self._connection.is_stopping:
                raise ServerStopped("The server was stopped before the answer was complete.")
            raise ClientDisconnected from None
