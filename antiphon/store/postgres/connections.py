"""A cache of open connections that no query uses now. The cache is in front of asyncpg's pool.

For each query, asyncpg's pool makes a proxy, a future and a task and sets two timers. This takes
two thirds of the time of a short query. Here, a connection does not go back to asyncpg's pool after
a query that succeeded: the next query uses it directly. asyncpg's pool still opens, limits and
closes the connections. But its option ``max_queries`` has no effect on a connection that never goes
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from antiphon.store.sql.row_mapping import Row
from antiphon.support.tasks import BackgroundTasks

#: Interval in seconds at which connections that were free since the last check go back to asyncpg's
#: pool, which closes them later.
_CHECK_S = 60.0


class Connections:
    """Lends connections to queries, and keeps the returned connections open for the next queries.
    ``pool``: asyncpg's pool, which limits the number of connections. ``lost``: the error that
    asyncpg raises if a closed connection is used."""

    def __init__(self, pool: DriverPool, lost: type[Exception]) -> None:
        self._pool = pool
        self._lost = lost
        #: The connection that was used last is at the end, and is used next.
        self._free_connections: list[DriverConnection] = []
        #: The smallest number of free connections since the last call of ``_release_unused``.
        self._least_free = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Number of callers that wait for a connection of asyncpg's pool.
        self._waiter_count = 0
        self._releases = BackgroundTasks("release of a connection")
        self._is_closed = False

    def use(self) -> _Use:
        """Return a context manager for the use of one connection."""
        return _Use(self)

    async def acquire(self) -> DriverConnection:
        """Return an open connection. The caller must give the connection back with ``free`` or
        ``release``."""
        while self._free_connections:
            connection = self._free_connections.pop()
            self._least_free = min(self._least_free, len(self._free_connections))
            if not self._is_lost(connection):
                return connection
            await self.release(connection)
        self._waiter_count += 1
        try:
            return await self._pool.acquire()
        finally:
            self._waiter_count -= 1

    async def free(self, connection: DriverConnection) -> None:
        """Give back a connection, so that the next query can use it directly. The last query of the
        connection must have succeeded, and the connection must be in no transaction. Otherwise call
        ``release``."""
        if self._waiter_count or self._is_closed:
            await self.release(connection)  # asyncpg's pool hands it to the first who waits
            return
        self._free_connections.append(connection)
        if self._timer is None:
            self._start_timer()

    async def release(self, connection: DriverConnection) -> None:
        """Give back a connection to asyncpg's pool. The connection may be in any state, for example
        lost or within a transaction."""
        await self._pool.release(connection)

    async def close(self) -> None:
        """Wait until no connection is used, then close all."""
        self._stop()
        await self._releases.wait()
        while self._free_connections:
            await self.release(self._free_connections.pop())
        await self._pool.close()

    def terminate(self) -> None:
        """Close all connections immediately, even those that are in use."""
        self._stop()
        self._pool.terminate()

    def _stop(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _is_lost(self, connection: DriverConnection) -> bool:
        try:
            return bool(connection.is_closed())
        except self._lost:  # asyncpg has taken the connection back, because the server closed it
            return True

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._release_unused)

    def _release_unused(self) -> None:
        """Give back to asyncpg's pool the connections that no query has used since the last call of
        this method."""
        free = self._free_connections
        unused, self._free_connections = free[: self._least_free], free[self._least_free :]
        self._least_free = len(self._free_connections)
        self._timer = None
        if self._free_connections:
            self._start_timer()
        for connection in unused:
            self._releases.start(self.release(connection))


class _Use:
    """Context manager that acquires a connection, and gives it back when the block ends.

    If the block succeeds, the connection is given back with ``free``: the next query can use it
    directly. If the block raises an error, the state of the connection is not known. So the
    connection is given back to asyncpg's pool with ``release``.
    """

    __slots__ = ("_connection", "_connections")

    _connection: DriverConnection

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __aenter__(self) -> DriverConnection:
        self._connection = await self._connections.acquire()
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._connections.free(self._connection)
        else:
            await self._connections.release(self._connection)


class DriverConnection(Protocol):
    """A connection of asyncpg."""

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """Run a statement, and return its rows."""

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Run a statement, and return the first column of its first row, or None."""

    async def execute(self, query: str, *arguments: object, timeout: float | None = None) -> str:
        """Run a statement, or several statements without arguments. Return PostgreSQL's word for
        what was done, such as "DELETE 3"."""

    async def executemany(self, command: str, args: Iterable[Iterable[object]]) -> None:
        """Run a statement once for each element of ``args``."""

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str,
        format: str,
        encoder: Callable[[Any], bytes],
        decoder: Callable[[bytes], bytes],
    ) -> None:
        """Convert all values of a type with these functions, in arrays, too."""

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager for a transaction."""

    def is_closed(self) -> bool:
        """Whether the connection is closed."""

    def add_termination_listener(self, callback: Callable[[DriverConnection], None]) -> None:
        """Call ``callback`` when the connection is closed."""

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Call ``callback`` for each notification of a channel."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection."""


class DriverPool(Protocol):
    """A pool of asyncpg."""

    async def acquire(self) -> DriverConnection:
        """Return a connection, when one is free."""

    async def release(self, connection: DriverConnection) -> None:
        """Give a connection back to the pool."""

    async def close(self) -> None:
        """Wait until no connection is used, then close all."""

    def terminate(self) -> None:
        """Close all connections immediately."""
