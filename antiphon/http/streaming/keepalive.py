"""Keepalives: small messages that stop clients and proxies from closing an idle stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress


class KeepaliveTimer:
    """A context manager that calls ``send`` about every ``after_s`` seconds while the stream is
    idle.

    ``send`` writes a keepalive. It is never called while other code writes to the stream inside
    ``sending()``. If ``after_s`` is 0, ``send`` is never called.
    """

    def __init__(self, after_s: float, send: Callable[[], Awaitable[None]]) -> None:
        self._half_s = after_s / 2
        self._send = send
        self._idle = False
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._sender: asyncio.Task[None] | None = None

    def __enter__(self) -> KeepaliveTimer:
        self._tick()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._sender.cancel()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Enclose every write to the stream in this context manager. It resets the idle time."""
        self._idle = False
        async with self._lock:
            yield

    def _tick(self) -> None:
        """Send a keepalive if nothing was sent since the last call of this method. The method runs
        every ``after_s / 2`` seconds."""
        if self._half_s <= 0:
            return
        if self._idle and not self._lock.locked():
            # Started by a timer, because a task that sleeps would cost each stream more.
            self._sender = asyncio.create_task(self._send_keepalive())
        self._idle = True
        self._timer = asyncio.get_running_loop().call_later(self._half_s, self._tick)

    async def _send_keepalive(self) -> None:
        async with self._lock:
            with suppress(OSError):  # CancelOnDisconnect handles lost connections
                await self._send()
