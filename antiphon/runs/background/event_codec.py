"""Encodes events as lines of JSON, and decodes such lines. Event logs consist of these lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from io import BytesIO
from operator import or_
from typing import Any

import msgspec

from antiphon.store.records import EventBatch
from antiphon.wire.events import EVENTS, Event, encodable_event

#: An event as JSON. A line of a large batch is a view of the bytes of the batch.
Line = bytes | memoryview


#: Batches with more bytes are written in parts, and their lines are split one by one.
_LARGE_BYTES = 1 << 20

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode


def encode_batch(
    events: Sequence[Event], tokens: bytes = b"", *, at: float | None = None
) -> EventBatch:
    """Return a batch of events, with one line of JSON for each. ``tokens``: the bytes to store with
    the events. They are a part of the run's token log, which contains the sampled token ids.
    ``at``: when the events were created, in Unix seconds.

    If the events are very long, the batch consists of parts, and each part is encoded only when it
    is written. This saves memory, because each of the last events of a response contains the whole
    text.
    """
    lines = BytesIO()  # a list of lines, joined at the end, would take twice the memory
    for event in events:
        lines.write(_encode(encodable_event(event)))
        lines.write(b"\n")
        if lines.tell() > _LARGE_BYTES:
            return _batch(events, parts=_Parts(events, tokens, at))
    return _batch(events, lines=lines.getvalue(), tokens=tokens, at=at)


class _Parts:
    """The parts of a batch of very long events. Each part is encoded when the iteration reaches it.

    Only the last part contains the token ids of the batch. The store writes all parts in one
    transaction, so it never has the events without the token ids.
    """

    def __init__(self, events: Sequence[Event], tokens: bytes, at: float | None) -> None:
        self._events = events
        self._tokens = tokens
        self._at = at

    def __iter__(self) -> Iterator[EventBatch]:
        first, lines = 0, BytesIO()
        for index, event in enumerate(self._events):
            lines.write(_encode(encodable_event(event)))
            lines.write(b"\n")
            if lines.tell() > _LARGE_BYTES:
                is_last = index + 1 == len(self._events)
                yield self._part(first, index + 1, lines, self._tokens if is_last else b"")
                first, lines = index + 1, BytesIO()
        if first < len(self._events):
            yield self._part(first, len(self._events), lines, self._tokens)

    def _part(self, start: int, end: int, lines: BytesIO, tokens: bytes) -> EventBatch:
        events = self._events[start:end]
        return _batch(events, lines=lines.getvalue(), tokens=tokens, at=self._at)


def _batch(events: Sequence[Event], **fields: Any) -> EventBatch:
    return EventBatch(first=events[0].sequence_number, count=len(events), **fields)


def decode_events(batches: Iterable[EventBatch]) -> Iterator[Event]:
    """Yield the events of the batches in order."""
    for batch in batches:
        for lines in lines_after(batch, -1):
            for line in lines:
                yield _decode(line)


def lines_after(batch: EventBatch, after: int) -> Iterator[list[Line]]:
    """Yield the events of ``batch`` whose sequence number is greater than ``after``, as lists of
    lines. A line is one event as JSON.

    For a small batch, there is only one list. For a large batch, each list has one line, which is a
    view of the batch and not a copy. This saves memory, because each of the last events of a
    response may contain the whole text.
    """
    skipped = max(0, after + 1 - batch.first)
    if len(batch.lines) <= _LARGE_BYTES:
        # JSON has no raw line ends; splitlines would also split at other characters.
        if lines := batch.lines.split(b"\n")[skipped:-1]:
            yield [*lines]
        return
    view, start = memoryview(batch.lines), 0
    while (end := batch.lines.find(b"\n", start)) >= 0:
        if skipped:
            skipped -= 1
        else:
            yield [view[start:end]]
        start = end + 1
