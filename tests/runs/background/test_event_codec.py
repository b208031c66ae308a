"""The lines of an event log."""

from __future__ import annotations

import pytest

from antiphon.runs.background import event_codec
from antiphon.runs.background.event_codec import lines_after
from antiphon.store.records import EventBatch


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
