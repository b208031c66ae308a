"""Subscriptions, through which readers in this process get the new events of a run. When a batch of
events is appended to the run, each reader gets the batch through its own subscription.

A subscription buffers only a few batches. If a reader is slow, its subscription drops the batches,
and the reader reads them from the store. So a slow reader needs little memory and blocks nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from antiphon.store.records import EventBatch

__all__ = ["Subscription", "Subscriptions"]

_Key = tuple[str, str]

#: Limits of the buffer of a subscription: number of batches, and bytes of their lines.
_MAX_BATCHES, _MAX_BYTES = 64, 1 << 20


class Subscription:
    """The subscription of one reader to one run. It buffers new batches of events until the reader
    takes them. Made by ``Subscriptions.subscribe``. A context manager: the subscription ends when
    the ``with`` block ends."""

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

    def __exit__(self, *exc: object) -> None:
        self._subscriptions.remove(self._key, self)

    @property
    def pending(self) -> int:
        """The number of batches of events that the reader has not taken yet."""
        return len(self._batches)

    def next_batch(self, after: int) -> EventBatch | None:
        """Return the buffered batch that contains the event with sequence number ``after + 1``.
        Drop the older batches.

        Returns None if this batch is not buffered. If only later batches are buffered, they are
        dropped too, and ``is_stale`` is set: the reader must read the store.
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
        """Buffer the next batch of the run. If the batch does not fit into the buffer, drop this
        batch and all buffered batches. The reader must then read the batches from the store. A
        batch with ``parts`` never fits."""
        size = len(batch.lines)
        if len(self._batches) >= _MAX_BATCHES or self._bytes + size > _MAX_BYTES or batch.parts:
            self._clear()
        elif not self.is_stale:
            self._batches.append(batch)
            self._bytes += size
        self._wake()

    def mark_stale(self) -> None:
        """Set ``is_stale``, which makes the reader read the store. Called when the run has ended,
        or when batches of the run may not have reached this subscription."""
        self.is_stale = True
        self._wake()

    def _clear(self) -> None:
        """Drop all buffered batches. The reader must read them from the store."""
        self._batches.clear()
        self._bytes = 0
        self.is_stale = True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Subscriptions:
    """The subscriptions of all readers in this process. A new batch of events is delivered to the
    subscriptions of its run.

    ``on_wait``: called whenever a reader begins to wait for the next batch of a run. Its argument
    is the key of the run (tenant and id).
    """

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
        """Return the keys of the runs that have subscriptions in this process."""
        return tuple(self._by_run)

    def publish(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        """Deliver a stored batch of events to the subscriptions of its run."""
        for subscription in self._by_run.get((tenant, response_id), ()):
            subscription.add(batch)

    def mark_stale(self, keys: Iterable[_Key] | None = None) -> None:
        """Mark all subscriptions to some runs as stale, so that their readers read the store.
        Called for runs that have ended or were deleted, and for runs whose notifications may have
        been lost. ``keys``: the tenant and the id of each of these runs. None means all runs."""
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
