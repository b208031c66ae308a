"""Subscriptions: batches that runs append, delivered to the readers in this process.

A subscription buffers few batches. A reader that lags finds a gap and reads the store again, so
that slow readers cost no memory and block nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType

from antiphon.store.records import EventBatch

__all__ = ["Subscription", "Subscriptions"]

_Key = tuple[str, str]

#: Batches that a subscription buffers for a busy reader, and their bytes.
_MAX_BATCHES, _MAX_BYTES = 64, 1 << 20


class Subscription:
    """One reader's view of one run, a context manager. Made by ``Subscriptions.subscribe``."""

    __slots__ = (
        "__weakref__",
        "_batches",
        "_bytes",
        "_key",
        "_subscriptions",
        "_waiter",
        "is_stale",
    )

    def __init__(self, subscriptions: Subscriptions, key: _Key) -> None:
        self._subscriptions = subscriptions
        self._key = key
        self._batches: deque[EventBatch] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        #: The buffer is incomplete; the reader must read the store.
        self.is_stale = False

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._subscriptions.remove(self._key, self)

    @property
    def pending(self) -> int:
        """The number of batches that wait for the reader."""
        return len(self._batches)

    def next_batch(self, after: int) -> EventBatch | None:
        """Return the batch with the event after ``after``, if it is buffered. Older batches are
        dropped.

        None if there is a gap; ``is_stale`` is set then.
        """
        while self._batches:
            batch = self._batches[0]
            if batch.first > after + 1:
                self._clear()
                return None
            self._batches.popleft()
            self._bytes -= len(batch.lines)
            if batch.last > after:
                return batch
        return None

    async def wait(self) -> None:
        """Wait until a batch is buffered or ``is_stale`` is set."""
        while not self._batches and not self.is_stale:
            self._subscriptions.on_wait(self._key)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def add(self, batch: EventBatch) -> None:
        """Add the next batch of the run. One in parts is read from the store."""
        size = len(batch.lines)
        if len(self._batches) >= _MAX_BATCHES or self._bytes + size > _MAX_BYTES or batch.parts:
            self._clear()
        elif not self.is_stale:
            self._batches.append(batch)
            self._bytes += size
        self._wake()

    def mark_stale(self) -> None:
        """Tell the reader to read the store: the run ended, or its batches are not buffered
        here."""
        self.is_stale = True
        self._wake()

    def _clear(self) -> None:
        """Drop what is buffered. The reader must read the store."""
        self._batches.clear()
        self._bytes = 0
        self.is_stale = True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Subscriptions:
    """All subscriptions of a process, by run. ``on_wait`` is called whenever a reader begins to
    wait for the next batch of a run."""

    def __init__(self) -> None:
        self.on_wait: Callable[[_Key], None] = lambda key: None
        self._by_run: dict[_Key, set[Subscription]] = {}

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Return a new subscription to a run."""
        key = (tenant, response_id)
        subscription = Subscription(self, key)
        self._by_run.setdefault(key, set()).add(subscription)
        return subscription

    def subscribed_runs(self) -> tuple[_Key, ...]:
        """Return the runs that have subscriptions here."""
        return tuple(self._by_run)

    def publish(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        """Deliver a stored batch to the subscriptions of its run."""
        for subscription in self._by_run.get((tenant, response_id), ()):
            subscription.add(batch)

    def mark_stale(self, keys: Iterable[_Key] | None = None) -> None:
        """Tell the readers of these runs (None: of all runs) to read the store: the runs ended or
        were deleted, or notifications may have been lost.
        """
        for key in self.subscribed_runs() if keys is None else keys:
            for subscription in self._by_run.get(key, ()):
                subscription.mark_stale()

    def remove(self, key: _Key, subscription: Subscription) -> None:
        """Remove a subscription that was closed."""
        subscriptions = self._by_run.get(key)
        if subscriptions is not None:
            subscriptions.discard(subscription)
            if not subscriptions:
                del self._by_run[key]
