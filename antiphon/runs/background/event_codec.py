"""Encodes events as the lines of JSON that event logs consist of, and decodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

import msgspec

from antiphon.store.records import EventBatch
from antiphon.wire.events import EVENTS, Event

__all__ = ["decode_events", "encode_events", "lines_after"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode


def encode_events(events: Iterable[Event]) -> bytes:
    """Return the events, one line each."""
    return b"".join(line for event in events for line in (_encode(event), b"\n"))


def decode_events(batches: Iterable[EventBatch]) -> Iterator[Event]:
    """Yield the events of the batches in order."""
    for batch in batches:
        for line in lines_after(batch, -1):
            yield _decode(line)


def lines_after(batch: EventBatch, after: int) -> list[bytes]:
    """Return the lines of the events after sequence number ``after``."""
    # JSON has no raw line ends; splitlines would also split at other characters.
    return batch.lines.split(b"\n")[max(0, after + 1 - batch.first) : -1]
