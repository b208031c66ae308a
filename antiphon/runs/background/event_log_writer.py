"""The journal: writes what this process' background runs say into the store, all runs together.

One append is under way at a time, and what is said meanwhile shares the next: the busier the store,
the larger the batches. A store that does not answer is asked again; a run that is no longer ours
is told so. It knows nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from antiphon.errors import RunError
from antiphon.runs.execution.run import EventSink, ReaderGone
from antiphon.store.records import Append, Claim, EventBatch, StoredResponse, WebhookEvent
from antiphon.store.runs import RunStore
from antiphon.wire.events import Event
from antiphon.wire.response import Response

from .event_codec import encode_events

__all__ = ["EventLogWriter", "LogSink", "retry_until_available"]

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

#: Events of one run that may wait for the store before its model has to.
_ROOM = 512
#: Seconds between questions to a store that does not answer: at first, and at most.
_RETRY_S, _RETRY_MAX_S = 0.05, 2.0


class EventLogWriter:
    """One a process. ``flush_s``: how long events wait for others to share their transaction."""

    def __init__(self, store: RunStore, *, flush_s: float) -> None:
        self._store = store
        self._flush_s = flush_s
        self._unwritten: dict[LogSink, None] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, entry: LogSink) -> None:
        """This entry has something to write."""
        self._unwritten[entry] = None
        if self._task is None:
            self._task = asyncio.create_task(self._write_on(), name="journal")

    async def wait_until_idle(self) -> None:
        """Until nothing is being written."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def _write_on(self) -> None:
        """Until nothing is left to write."""
        try:
            while self._unwritten:
                await asyncio.sleep(self._flush_s)
                entries, self._unwritten = list(self._unwritten), {}
                await self._write(entries)
        finally:
            self._task = None

    async def _write(self, entries: list[LogSink]) -> None:
        appends = tuple(append for entry in entries if (append := entry.next_append()) is not None)
        lost = frozenset[str]()
        if appends:
            lost = await retry_until_available(lambda: self._store.append(appends))
        for entry in entries:
            entry.acknowledge(lost=entry.claim.job.id in lost)


class LogSink(EventSink):
    """``Outlet`` of one background run. ``sampled`` is where its recorder keeps the token ids, of
    which ``written`` are in the store. ``expires_at``: when the response is to be forgotten."""

    def __init__(
        self,
        log_writer: EventLogWriter,
        store: RunStore,
        claim: Claim,
        sampled: array[int],
        *,
        conversation: str | None,
        expires_at: Callable[[], int | None],
        webhook: Callable[[Response], WebhookEvent | None],
    ) -> None:
        self._journal = log_writer
        self._store = store
        self.claim = claim
        self._sampled = sampled
        self._told = len(sampled)
        self._conversation = conversation
        self._expires_at = expires_at
        self._webhook_event = webhook
        self._events: list[Event] = []
        self._in_flight = 0
        self._lost = False
        self._change: asyncio.Future[None] | None = None
        self.wait_for_room = self._has_room

    def write(self, events: tuple[Event, ...]) -> None:
        if self._lost:
            raise ReaderGone
        self._events.extend(events)
        self._journal.schedule(self)

    async def _has_room(self) -> None:
        """Here the tokens recorded and the events written agree: what a flush finds while the run
        waits for its model is whole."""
        while len(self._events) + self._in_flight > _ROOM and not self._lost:
            await self._changed()
        if self._lost:
            raise ReaderGone

    async def flush(self) -> None:
        while (self._events or self._in_flight) and not self._lost:
            await self._changed()
        if self._lost:
            raise ReaderGone

    async def end(self, events: tuple[Event, ...], stored: StoredResponse) -> None:
        while self._in_flight and not self._lost:
            await self._changed()
        self._events.extend(events)
        batch = self._batch()
        self._in_flight = batch.count
        webhook = self._webhook_event(stored.response)
        ended = not self._lost and await retry_until_available(
            lambda: self._store.end(
                self.claim,
                stored,
                batch,
                conversation=self._conversation if _said(stored) else None,
                expires_at=self._expires_at(),
                webhook=webhook,
            )
        )
        if not ended:
            raise ReaderGone

    def next_append(self) -> Append | None:
        """What has been said since the last time, to be written now."""
        if not self._events or self._in_flight or self._lost:
            return None
        batch = self._batch()
        self._in_flight = batch.count
        return Append(self.claim, batch)

    def acknowledge(self, *, lost: bool) -> None:
        """It is in the store, or the run is somebody else's."""
        self._in_flight = 0
        self._lost = self._lost or lost
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def mark_lost(self) -> None:
        """The run is somebody else's."""
        self.acknowledge(lost=True)

    def _batch(self) -> EventBatch:
        events, self._events = self._events, []
        tokens = self._sampled[self._told :]
        self._told = len(self._sampled)
        return EventBatch(
            first=events[0].sequence_number,
            count=len(events),
            lines=encode_events(events),
            tokens=tokens.tobytes(),
        )

    async def _changed(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        await self._change


def _said(stored: StoredResponse) -> bool:
    """It is part of its conversation: what failed is not, nor what was not to be stored."""
    response = stored.response
    return response.store and response.status in ("completed", "incomplete")


async def retry_until_available(ask: Callable[[], Awaitable[_T]]) -> _T:
    """Ask the store until it answers: what a run has said is not given up for a moment's outage.
    Should it last, another process takes the run over, and the answer is that it is lost."""
    wait = _RETRY_S
    while True:
        try:
            return await ask()
        except RunError as error:
            _log.warning("the store does not answer", error=error.message, retry_s=wait)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _RETRY_MAX_S)
