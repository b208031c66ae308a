"""Writes the event logs of all background runs of this process to the store.

Theory. The event log of a run is the run: its events, with the token ids that they came from, are
all that another server needs to continue it, and readers never see an event that is not stored.
Each server that executes a run has a claim on it, with an epoch that grows with each new claim. The
store appends events only for the newest epoch. So if two servers believe that they execute the same
run, the events of exactly one of them are in the log, and the other one learns it from its next
append: the event sink of its run raises ``ReaderGone``, which ends the run there and nowhere else.

An event passes three places. ``LogSink.write`` puts it into the queue of its run, and lets the run
wait if the queue is long. ``EventLogWriter`` appends the events of all runs together. After that,
the store notifies the readers. One append is in progress at a time, and events that are emitted
meanwhile wait for the next one. If the store is slow, appends follow at longer intervals and are
larger, which saves work, because a transaction for many runs costs little more than one for a
single run. If the store does not answer, the append is repeated without an end: the heartbeats keep
the claim, or another server takes the run over.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.errors import StoreError
from antiphon.runs.execution.run import EventSink, ReaderGone
from antiphon.store.records import (
    Append,
    Claim,
    EventBatch,
    RunEnd,
    Steering,
    StoredResponse,
    WebhookEvent,
)
from antiphon.store.runs import RunStore
from antiphon.store.usage import UsageRecord
from antiphon.support.tasks import BackgroundTasks, Backoff, retry
from antiphon.wire.events import Event
from antiphon.wire.response import Response

from .event_codec import encode_batch

_T = TypeVar("_T")

#: Number of unwritten events of one run. If there are more, the run reads no further deltas.
_MAX_UNWRITTEN = 512
#: Seconds between retries while the store does not answer: the first and the longest pause.
_RETRY_S, _RETRY_MAX_S = 0.05, 2.0
#: The time between the starts of two appends is this many times the duration of a fast append, and
#: at least this many seconds. An append for several runs costs little more than one for one run.
_PERIOD_FACTOR, _MIN_PERIOD_S = 3, 0.005
#: The factor by which the duration of a fast append grows with each append that takes longer.
_APPEND_GROWTH = 1.02


#: Returns the end of a run that was steered (``Steerer.conclude``).
Conclude = Callable[[RunEnd, Steering], RunEnd]


class EventLogWriter:
    """Appends the events of background runs to the store. One instance per process. ``flush_s``:
    the longest time in seconds between the starts of two appends. If an append takes longer, the
    next append starts right after it."""

    def __init__(self, store: RunStore, *, flush_s: float) -> None:
        self._store = store
        self._flush_s = flush_s
        self._began_at = -math.inf
        #: Seconds that a fast append takes at present. A single append may take longer because it
        #: waits for a processor, for example while readers process the events of the last append.
        self._fast_append_s = _MIN_PERIOD_S / _PERIOD_FACTOR
        self._unwritten: dict[LogSink, None] = {}
        self._tasks = BackgroundTasks("event log writer")

    def schedule(self, entry: LogSink) -> None:
        """Have this run's unwritten events written to the store with the next append. ``entry``:
        the event sink of the run."""
        self._unwritten[entry] = None
        self._tasks.start_once("write", self._write_all)

    async def wait_until_idle(self) -> None:
        """Wait until all events are written."""
        await self._tasks.wait()

    async def _write_all(self) -> None:
        """Write queued events to the store until no run has unwritten events."""
        while self._unwritten:
            await asyncio.sleep(self._rest_s())
            entries, self._unwritten = list(self._unwritten), {}
            await self._write(entries)

    def _rest_s(self) -> float:
        """Return the pause before the next append, in seconds. If the store is slow, the pause is
        longer, so that more events share the next append."""
        period_s = min(self._flush_s, _PERIOD_FACTOR * self._fast_append_s)
        return max(0.0, self._began_at + period_s - asyncio.get_running_loop().time())

    async def _write(self, entries: list[LogSink]) -> None:
        appends = tuple(append for entry in entries if (append := entry.next_append()) is not None)
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        lost = frozenset[str]()
        if appends:
            lost = await retry_until_available(lambda: self._store.append(appends))
        append_s = loop.time() - self._began_at
        longest_s = _APPEND_GROWTH * self._fast_append_s
        self._fast_append_s = max(_MIN_PERIOD_S / _PERIOD_FACTOR, min(append_s, longest_s))
        for entry in entries:
            entry.acknowledge(lost=entry.claim.job.id in lost)


class LogSink(EventSink):
    """``EventSink`` of one background run. It passes the events to ``log_writer``, which stores
    them.

    ``claim``: the right to execute the run. ``sampled``: the run's token log, to which the
    ``Recorder`` of the run appends the sampled token ids. The sink stores the new ids together with
    the events.
    ``conversation``: the id of the conversation to which the response is added. ``expires_at``
    returns when the response will be deleted. ``webhooks`` and ``usage`` return what is stored when
    the run ends: its webhooks and its usage record. ``conclude`` returns the end of a run that
    clients have steered. ``clock`` returns Unix seconds. ``has_readers``: whether clients follow
    the events. If not, events are stored only where the run must be able to continue: before tools
    run, and at its end. So a run without tools that is interrupted begins again.
    """

    def __init__(
        self,
        log_writer: EventLogWriter,
        store: RunStore,
        claim: Claim,
        sampled: array[int],
        *,
        conversation: str | None,
        expires_at: Callable[[], int | None],
        webhooks: Callable[[Response], Awaitable[tuple[WebhookEvent, ...]]],
        usage: Callable[[Response], UsageRecord | None],
        conclude: Conclude,
        clock: Callable[[], float],
        has_readers: bool = True,
    ) -> None:
        self._has_readers = has_readers
        self._log_writer = log_writer
        self._store = store
        self.claim = claim
        self._sampled = sampled
        #: Length of the part of ``sampled`` that is stored.
        self._stored_tokens = len(sampled)
        self._conversation = conversation
        self._expires_at = expires_at
        self._build_webhooks = webhooks
        self._usage_of = usage
        self._conclude = conclude
        self._clock = clock
        self._events: list[Event] = []
        self._in_flight = 0
        self._lost = False
        self._change: asyncio.Future[None] | None = None

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        if self._lost:
            raise ReaderGone
        self._events.extend(events)
        if not self._has_readers:
            return None
        self._log_writer.schedule(self)
        has_room = len(self._events) + self._in_flight <= _MAX_UNWRITTEN
        return None if has_room else self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Wait while too many events are not yet stored.

        During the wait, an append may store the waiting events together with the new token ids of
        the token log. The last of these events and the last of these ids must belong to the same
        token. They do, because the run records a whole batch of deltas before it writes the events.
        """
        while len(self._events) + self._in_flight > _MAX_UNWRITTEN and not self._lost:
            await self._changed()
        if self._lost:
            raise ReaderGone

    async def flush(self) -> None:
        if self._events:
            self._log_writer.schedule(self)
        while (self._events or self._in_flight) and not self._lost:
            await self._changed()
        if self._lost:
            raise ReaderGone

    async def end(self, events: tuple[Event, ...], stored: StoredResponse) -> None:
        webhooks = await retry_until_available(lambda: self._build_webhooks(stored.response))
        while self._in_flight and not self._lost:
            await self._changed()
        self._events.extend(events)
        batch = self._batch()
        self._in_flight = batch.count
        end = RunEnd(
            stored=stored,
            batch=batch,
            conversation=self._conversation if _joins_conversation(stored) else None,
            expires_at=self._expires_at(),
            webhooks=webhooks,
            usage=self._usage_of(stored.response),
        )
        is_stored = not self._lost and await retry_until_available(
            lambda: end_steered(self._store, self.claim, end, self._conclude)
        )
        if not is_stored:
            raise ReaderGone

    def next_append(self) -> Append | None:
        """Return the unwritten events, to be added to the stored event log. Returns None if there
        are no unwritten events, if earlier events of this run are being stored, or if another
        server owns the run."""
        if not self._events or self._in_flight or self._lost:
            return None
        batch = self._batch()
        self._in_flight = batch.count
        return Append(self.claim, batch)

    def acknowledge(self, *, lost: bool) -> None:
        """Record the result of the append that ``next_append`` has returned. If ``lost`` is false,
        the store has the events. If ``lost`` is true, another server owns the run."""
        self._in_flight = 0
        self._lost = self._lost or lost
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def mark_lost(self) -> None:
        """Record that another server owns the run."""
        self.acknowledge(lost=True)

    def _batch(self) -> EventBatch:
        events, self._events = self._events, []
        tokens = self._sampled[self._stored_tokens :]
        self._stored_tokens = len(self._sampled)
        return encode_batch(events, tokens.tobytes(), at=self._clock())

    async def _changed(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change


def _joins_conversation(stored: StoredResponse) -> bool:
    """Return whether the response is added to its conversation. This is not the case if it failed,
    was cancelled, or is not to be stored."""
    response = stored.response
    return response.store and response.status in ("completed", "incomplete")


async def end_steered(store: RunStore, claim: Claim, end: RunEnd, conclude: Conclude) -> bool:
    """End a run, with the input with which clients have steered it until now. Returns False if the
    claim is no longer valid. Raises ``StoreError``."""
    job, concluded = claim.job, end
    while not await store.end(claim, concluded):
        steering = await store.steering(job.tenant, job.id)
        if steering is None or steering.count == concluded.steering_count:
            return False
        concluded = conclude(end, steering)
    return True


async def retry_until_available(
    operation: Callable[[], Awaitable[_T]], *, limit_s: float | None = None
) -> _T:
    """Retry a store operation until it succeeds, so that a short outage of the store does not end a
    run. ``limit_s``: seconds after which the ``StoreError`` is raised instead of a new attempt;
    None means no limit.

    During a long outage, another server can take over the run. The store then rejects the
    operation. It does not raise an error: the result of the operation says that the operation was
    rejected.
    """
    return await retry(
        operation,
        StoreError,
        Backoff(_RETRY_S, _RETRY_MAX_S),
        failure="the store does not answer",
        limit_s=limit_s,
    )
