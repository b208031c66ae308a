"""Tails: what runs append, handed to the followers that wait for it in this process.

A tail keeps little. A follower that lags finds a gap and reads the store again, so a slow one costs
no memory and nobody waits for it. It knows nothing of where batches are kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType

from .records import Batch

__all__ = ["Subscription", "Subscriptions"]

_Key = tuple[str, str]

#: Batches a tail keeps for a follower that is busy sending.
_MAX_BATCHES = 64


class Subscription:
    """One follower's view of one run. Made by ``Tails.follow``; to be closed."""

    __slots__ = ("_batches", "_key", "_subscriptions", "_waiter", "is_stale")

    def __init__(self, subscriptions: Subscriptions, key: _Key) -> None:
        self._subscriptions = subscriptions
        self._key = key
        self._batches: deque[Batch] = deque()
        self._waiter: asyncio.Future[None] | None = None
        #: Something happened that is not in the tail: the store has to be read.
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

    def next_batch(self, after: int) -> Batch | None:
        """The batch that holds the event after this one, if it is here. What is older is dropped;
        with a gap there is None, and ``dirty`` is set."""
        while self._batches:
            batch = self._batches[0]
            if batch.first > after + 1:
                self._batches.clear()
                self.is_stale = True
                return None
            self._batches.popleft()
            if batch.last > after:
                return batch
        return None

    async def wait(self) -> None:
        """Until there is a batch, or ``dirty`` is set."""
        while not self._batches and not self.is_stale:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def add(self, batch: Batch) -> None:
        """The next batch of the run."""
        if len(self._batches) >= _MAX_BATCHES:
            self._batches.clear()
            self.is_stale = True
        elif not self.is_stale:
            self._batches.append(batch)
        self._wake()

    def mark_stale(self) -> None:
        """Something happened: the run ended, or its batches are elsewhere."""
        self.is_stale = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Subscriptions:
    """All followers of a process, by the run they follow."""

    def __init__(self) -> None:
        self._by_run: dict[_Key, set[Subscription]] = {}

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """A new tail of this run."""
        key = (tenant, response_id)
        tail = Subscription(self, key)
        self._by_run.setdefault(key, set()).add(tail)
        return tail

    def subscribed_runs(self) -> tuple[_Key, ...]:
        """The runs that somebody here follows."""
        return tuple(self._by_run)

    def publish(self, tenant: str, response_id: str, batch: Batch) -> None:
        """This batch was kept."""
        for tail in self._by_run.get((tenant, response_id), ()):
            tail.add(batch)

    def mark_stale(self, keys: Iterable[_Key] | None = None) -> None:
        """These runs (None: all) have to be looked at in the store: they ended or were deleted, or
        news of them may have been lost."""
        for key in self.subscribed_runs() if keys is None else keys:
            for tail in self._by_run.get(key, ()):
                tail.mark_stale()

    def remove(self, key: _Key, subscription: Subscription) -> None:
        """Called by a tail that is closed."""
        tails = self._by_run.get(key)
        if tails is not None:
            tails.discard(subscription)
            if not tails:
                del self._by_run[key]
