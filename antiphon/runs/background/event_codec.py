"""Encodes events as the lines of JSON that event logs consist of, and decodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from io import BytesIO
from operator import or_

import msgspec

from antiphon.store.records import EventBatch
from antiphon.wire.events import EVENTS, Event

__all__ = ["decode_events", "encode_events", "lines_after"]

#: Batches of more bytes are split bit by bit.
_LARGE_BYTES = 1 << 20

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode


def encode_events(events: Iterable[Event]) -> bytes:
    """Return the events, one line each."""
    lines = BytesIO()  # the pieces and their join together would take twice the memory
    for event in events:
        lines.write(_encode(event))
        lines.write(b"\n")
    return lines.getvalue()


def decode_events(batches: Iterable[EventBatch]) -> Iterator[Event]:
    """Yield the events of the batches in order."""
    for batch in batches:
        for lines in lines_after(batch, -1):
            for line in lines:
                yield _decode(line)


def lines_after(batch: EventBatch, after: int) -> Iterator[list[bytes]]:
    """Yield the lines of the events after sequence number ``after``, those of a large batch bit by
    bit: its last events may each hold the whole text."""
    skipped = max(0, after + 1 - batch.first)
    if len(batch.lines) <= _LARGE_BYTES:
        # JSON has no raw line ends; splitlines would also split at other characters.
        if lines := batch.lines.split(b"\n")[skipped:-1]:
            yield lines
        return
    start = 0
    while (end := batch.lines.find(b"\n", start)) >= 0:
        if skipped:
            skipped -= 1
        else:
            yield [batch.lines[start:end]]
        start = end + 1
