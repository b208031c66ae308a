"""What the connections of one server share: the app, the limits, and the tasks."""

from __future__ import annotations

import asyncio
import ipaddress
import math
from collections import Counter
from collections.abc import Coroutine
from email.utils import formatdate
from typing import Any, Protocol

from msgspec import Struct
from starlette.types import ASGIApp

#: Seconds between two looks at whether all connections are closed.
_CLOSING_STEP_S = 0.05
#: Seconds between two looks at whether a client has stalled too long, and the longest stall while
#: the server stops.
_STALL_STEP_S, _LAST_STALL_S = 0.5, 3.0


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits of one client's connections. They stop slow clients from using all resources of the
    server. A limit of 0 means no limit.

    - ``head_s``: maximum seconds until the request line and headers have arrived.
    - ``body_grace_s``: seconds until the data rate of the request body is checked for the first
      time.
    - ``body_bytes_per_s``: minimum average data rate of the request body.
    - ``stall_s``: maximum seconds in which a client receives next to nothing of what waits for it.
    - ``per_address``: maximum number of open connections from one IP address; loopback addresses
      have no limit.
    """

    head_s: float = 30.0
    body_grace_s: float = 30.0
    body_bytes_per_s: float = 500.0
    stall_s: float = 60.0
    per_address: int = 2048


class OpenConnection(Protocol):
    """An open connection."""

    def finish_request(self) -> None:
        """Close the connection, but answer the request first that is being answered."""

    def shut_down(self) -> None:
        """Close the connection at the end of the server. A request may still be answered."""

    def stop_request(self) -> None:
        """End the request that is being answered, which tells the client the reason."""


class OpenConnections:
    """The open connections of one server.

    - ``app`` answers the requests.
    - ``max_frame_bytes``: maximum size of a WebSocket message.
    """

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, max_frame_bytes: int) -> None:
        self.app = app
        self.limits = limits
        self.max_frame_bytes = max_frame_bytes
        #: What a WebSocket receives at once. It is small, because it may contain thousands of
        #: frames, and the event loop does nothing else until all are read.
        self.frame_buffer = memoryview(bytearray(2**14))
        self._tasks: set[asyncio.Task[None]] = set()
        self._date_line, self._date_until = b"", -1.0
        self._open: set[OpenConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._stall_s = limits.stall_s or math.inf

    def add(self, connection: OpenConnection) -> None:
        self._open.add(connection)

    def remove(self, connection: OpenConnection) -> None:
        self._open.discard(connection)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task."""
        # Not by ``BackgroundTasks``: this is on the path of every request.
        task = asyncio.create_task(work, name="HTTP request")
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "the app has failed", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    def count(self, address: str) -> bool:
        """Count a connection from this address. Return whether the address has too many."""
        self._by_address[address] += 1
        return self._by_address[address] > self.limits.per_address

    def uncount(self, address: str) -> None:
        """Count a connection from this address no longer."""
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def date_line(self, now: float) -> bytes:
        """Return the header ``date``, which is made once a second. ``now``: the loop's time."""
        if now >= self._date_until:
            self._date_until = now + 1
            self._date_line = f"date: {formatdate(usegmt=True)}\r\n".encode()
        return self._date_line

    async def wait_for_client(
        self, writable: asyncio.Future[None], transport: asyncio.Transport
    ) -> None:
        """Wait until a client has received enough, so that more can be written. If it stalls too
        long, end the connection: what is sent to the client may hold a place that others wait for.
        ``writable``: completes at the end of the stall or of the connection."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not writable.done():
            await asyncio.wait((writable,), timeout=_STALL_STEP_S)
            if not writable.done() and loop.time() - since >= self._stall_s:
                transport.abort()

    def finish_requests(self) -> None:
        """Close the connections, each when its request is answered."""
        self._stall_s = min(self._stall_s, _LAST_STALL_S)
        for connection in tuple(self._open):
            connection.finish_request()

    def shut_down(self) -> None:
        """Close the connections at the end of the server."""
        for connection in tuple(self._open):
            connection.shut_down()

    async def wait(self, patience_s: float) -> None:
        """Wait until all connections are closed and all requests are answered."""
        end = asyncio.get_running_loop().time() + patience_s
        while (self._open or self._tasks) and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(_CLOSING_STEP_S)

    async def close(self, flush_s: float) -> None:
        """Stop the requests that have not ended, and cancel those that need more than ``flush_s``
        seconds for their end."""
        for connection in tuple(self._open):
            connection.stop_request()
        await self.wait(flush_s)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


def address_of(name: object) -> tuple[str, int] | None:
    """Return host and port of a socket's name. Returns None for a Unix socket."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a Unix socket
        return True
