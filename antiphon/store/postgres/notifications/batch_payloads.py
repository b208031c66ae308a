"""The payloads of notifications about new batches of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from antiphon.store.records import EventBatch

#: Largest size of the payload of a notification of PostgreSQL, whose limit is 8000 bytes.
MAX_BYTES = 7_900
#: Largest size of the head of one batch.
_HEAD_BYTES = 48

#: The head of a batch: row of the run, first event, number of events, and bytes of their lines.
#: 0 bytes mean that the lines are left out.
_Head = tuple[int, int, int, int]
_encode_heads = msgspec.json.Encoder().encode
_decode_heads = msgspec.json.Decoder(list[_Head]).decode


def encode_batches(
    batches: Iterable[tuple[int, EventBatch]],
    max_bytes: int = MAX_BYTES,
    *,
    has_lines: bool = True,
) -> Iterator[bytes]:
    """Yield the payloads of notifications about these batches. ``batches``: pairs of the row number
    of a run and a batch of its events. ``max_bytes``: largest size of a payload. A batch whose
    events do not fit into one payload is announced without its events. With ``has_lines`` False,
    all are."""
    heads: list[_Head] = []
    lines: list[bytes] = []
    used = 0
    longest = max_bytes - _HEAD_BYTES if has_lines else 0
    for row, batch in batches:
        size = len(batch.lines) if len(batch.lines) <= longest else 0
        if used + size + _HEAD_BYTES > max_bytes:
            yield _payload(heads, lines)
            heads, lines, used = [], [], 0
        heads.append((row, batch.first, batch.count, size))
        lines.append(batch.lines if size else b"")
        used += size + _HEAD_BYTES
    if heads:
        yield _payload(heads, lines)


def _payload(heads: list[_Head], lines: list[bytes]) -> bytes:
    return b"\n".join((_encode_heads(heads), b"".join(lines)))


def decode_batches(payload: bytes) -> list[tuple[int, EventBatch | None]]:
    """Decode a payload. Return pairs of the row number of a run and a batch of its events. If the
    events of a batch were too long for the payload, None replaces the batch, and the caller must
    read the events from the store. Raises ``MsgspecError`` if the payload is not from
    ``encode_batches``."""
    heads, _, lines = payload.partition(b"\n")
    batches: list[tuple[int, EventBatch | None]] = []
    start = 0
    for row, first, count, size in _decode_heads(heads):
        batch = EventBatch(first=first, count=count, lines=lines[start : start + size])
        batches.append((row, batch if size else None))
        start += size
    return batches
