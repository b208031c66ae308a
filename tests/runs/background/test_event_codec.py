"""The lines of an event log."""

from __future__ import annotations

import msgspec
import pytest

from antiphon.runs.background import event_codec
from antiphon.runs.background.event_codec import decode_events, encode_batch, lines_after
from antiphon.store.records import EventBatch
from antiphon.wire.events import OutputTextDelta, encodable_event


def delta(number: int, text: str) -> OutputTextDelta:
    """An event of a text."""
    return OutputTextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text
    )


def encoded(events: list[OutputTextDelta]) -> bytes:
    """The lines of events."""
    return b"".join(msgspec.json.encode(encodable_event(each)) + b"\n" for each in events)


@pytest.mark.parametrize("large_bytes", [0, 1 << 20])
def test_lines_of_large_batches_come_one_by_one(
    monkeypatch: pytest.MonkeyPatch, large_bytes: int
) -> None:
    monkeypatch.setattr(event_codec, "_LARGE_BYTES", large_bytes)
    batch = EventBatch(first=4, count=4, lines=b"a\nb\nc\nd\n")
    rests = {-1: b"abcd", 3: b"abcd", 4: b"bcd", 6: b"d", 7: b"", 99: b""}
    for after, expected in rests.items():
        groups = list(lines_after(batch, after))
        assert b"".join(line for lines in groups for line in lines) == expected
        if not large_bytes:
            assert all(len(lines) == 1 for lines in groups)


def test_long_events_are_encoded_part_by_part() -> None:
    events = [delta(number, "x" * (800_000 if number else 3)) for number in range(5)]
    batch = encode_batch(events, b"\1\0\0\0")
    assert (batch.first, batch.count, batch.lines, batch.tokens) == (0, 5, b"", b"")
    for _ in range(2):  # a store may try again
        parts = list(batch.parts)
        assert [(part.first, part.count) for part in parts] == [(0, 3), (3, 2)]
        assert b"".join(part.lines for part in parts) == encoded(events)
        assert [part.tokens for part in parts] == [b"", b"\1\0\0\0"]
    assert list(decode_events(parts)) == events


def test_short_events_are_one_batch() -> None:
    events = [delta(number, "x") for number in range(5)]
    batch = encode_batch(events, b"\1\0\0\0")
    assert list(batch.rows) == [batch]
    assert (batch.lines, batch.tokens) == (encoded(events), b"\1\0\0\0")
