"""Silence on a stream, and what fills it, so that no client or proxy takes it for dead.

It knows neither events nor sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType

__all__ = ["KeepaliveTimer"]


class KeepaliveTimer:
    """Inside the block, ``fill`` is called after ``after_s`` seconds without anything said, again
    and again, but never while something is being said. 0: never."""

    def __init__(self, after_s: float, fill: Callable[[], Awaitable[None]]) -> None:
        self._half_s = after_s / 2
        self._fill = fill
        self._silent = False
        self._speaking = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._filling: asyncio.Task[None] | None = None

    def __enter__(self) -> KeepaliveTimer:
        self._look()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._filling is not None:
            self._filling.cancel()

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        """While something is said."""
        self._silent = False
        async with self._speaking:
            yield

    def _look(self) -> None:
        """Twice an interval: was anything said since?"""
        if self._half_s <= 0:
            return
        if self._silent and not self._speaking.locked():
            self._filling = asyncio.create_task(self._say())
        self._silent = True
        self._timer = asyncio.get_running_loop().call_later(self._half_s, self._look)

    async def _say(self) -> None:
        async with self._speaking:
            with suppress(OSError):  # that nobody is there is for others to notice
                await self._fill()
