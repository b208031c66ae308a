"""The connections of a process that are free, in front of asyncpg's pool.

For each query, asyncpg's pool makes a proxy, a future and a task and sets two timers, which takes
nearly as long as to send a short query and to read its answer. Here, a connection whose query has
succeeded is kept and used again as it is. asyncpg's pool opens, replaces and closes connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Connections"]

#: A connection that was not used for this many seconds goes back to asyncpg's pool, which closes it
#: later.
_UNUSED_S = 60.0


class Connections:
    """The connections of one pool. ``pool``: asyncpg's pool, which limits their number."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        #: The free connections. The one that was used last is at the end, and is used next.
        self._free: list[Any] = []
        #: The smallest number of free connections since the last look at unused connections.
        self._least_free = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Number of callers that wait for a connection of asyncpg's pool.
        self._waiting = 0
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(self) -> Any:
        """Return a connection. Call ``free`` or ``release`` when it is no longer used."""
        while self._free:
            connection = self._free.pop()
            self._least_free = min(self._least_free, len(self._free))
            if not connection.is_closed():
                return connection
            await self.release(connection)
        self._waiting += 1
        try:
            return await self._pool.acquire()
        finally:
            self._waiting -= 1

    async def free(self, connection: Any) -> None:
        """Give back a connection whose last query has succeeded and that is in no transaction."""
        if self._waiting:
            await self.release(connection)  # asyncpg's pool hands it to the first who waits
            return
        self._free.append(connection)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_UNUSED_S, self._release_unused)

    async def release(self, connection: Any) -> None:
        """Give back a connection in any state to asyncpg's pool."""
        await self._pool.release(connection)

    async def close(self) -> None:
        """Close all connections when they are no longer used."""
        if self._timer is not None:
            self._timer.cancel()
        while self._free:
            await self.release(self._free.pop())
        await self._pool.close()

    def terminate(self) -> None:
        """Close all connections at once."""
        self._pool.terminate()

    def _release_unused(self) -> None:
        """Give those connections to asyncpg's pool that were free all the time since the last
        call."""
        unused, self._free = self._free[: self._least_free], self._free[self._least_free :]
        self._least_free = len(self._free)
        self._timer = None
        if self._free:
            self._timer = asyncio.get_running_loop().call_later(_UNUSED_S, self._release_unused)
        for connection in unused:
            task = asyncio.create_task(self.release(connection))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
