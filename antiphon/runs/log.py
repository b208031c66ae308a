"""The log of a run: its numbered events, appended by one run, followed by readers.

A kept log serves any number of readers from any event on. A passing log serves one, forgets what
that one has read, and lets the run wait while it lags: memory stays flat however long the answer
and however slow the reader. It knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from antiphon.wire.events import Event

__all__ = ["Log"]


class Log:
    """Events in order. ``kept``: for many readers and replay. ``room``: how many events a reader
    of a passing log may lag behind before ``ready`` makes the run wait."""

    def __init__(self, *, kept: bool = False, room: int = 256) -> None:
        self._kept = kept
        self._room = room
        self._events: list[Event] = []
        self._first = 0  # sequence number of _events[0]
        self._closed = False
        self._muted = False
        self._waiting: list[asyncio.Future[None]] = []
        self._writer: asyncio.Future[None] | None = None

    @property
    def closed(self) -> bool:
        """No more events will come."""
        return self._closed

    def append(self, events: tuple[Event, ...]) -> None:
        """Add events and wake the readers."""
        if not self._muted:
            self._events.extend(events)
            self._wake()

    def close(self) -> None:
        """The terminal event has been appended."""
        self._closed = True
        self._wake()

    def mute(self) -> None:
        """Nobody will follow a passing log: keep nothing."""
        self._muted = not self._kept
        if self._muted:
            self._events.clear()
            self._release()

    @property
    def is_full(self) -> bool:
        """The reader of a passing log lags: ``ready`` would wait."""
        return len(self._events) > self._room and not (self._kept or self._muted or self._closed)

    async def ready(self) -> None:
        """Wait until the reader of a passing log has caught up."""
        while self.is_full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def wait(self) -> None:
        """Wait until the log is closed."""
        while not self._closed:
            await self._more()

    async def follow(self, after: int = -1) -> AsyncGenerator[tuple[Event, ...], None]:
        """Batches of all that is there beyond sequence number ``after``, then of what comes, until
        the log is closed. Each batch is whatever has become ready; it is never waited for more."""
        at = after + 1
        while True:
            skipped = at - self._first
            batch = tuple(self._events[skipped:] if skipped > 0 else self._events)
            if batch:
                at = batch[-1].sequence_number + 1
                if not self._kept:
                    self._events.clear()
                    self._first = at
                    self._release()
                yield batch
            elif self._closed:
                return
            else:
                await self._more()

    def _more(self) -> asyncio.Future[None]:
        """Done when something was appended, or the log closed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():  # a reader may have left
                waiter.set_result(None)

    def _release(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)
