"""Encode events as ``text/event-stream``.

All events that are ready are sent in one write. Line ends are LF. The field ``event`` repeats the
``type`` of the JSON. There is no field ``id``. The last line of the stream is ``[DONE]``. This is
the format that the strictest known parser needs. On request, deltas are padded (obfuscation).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from antiphon.wire.events import EVENTS, Event, encodable_event

#: The last line of every stream.
DONE = b"data: [DONE]\n\n"

#: A comment, which clients ignore. It keeps the connection open.
COMMENT = b": keepalive\n\n"

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Otherwise nginx buffers the events.
    (b"x-accel-buffering", b"no"),
)

_HEADS: Mapping[type[Event], bytes] = {
    event: f"event: {name}\ndata: ".encode() for name, event in EVENTS.items()
}
#: Offset of the type in an event's JSON.
_TYPE = len(b'{"type":"')
#: Maximum number of bytes from the start of an event's JSON to the end of its type.
_MAX_HEAD_BYTES = _TYPE + 1 + max(map(len, EVENTS))
#: Maximum size in bytes of one piece of a stream of stored events.
_MAX_PIECE_BYTES = 1 << 16
_encode = msgspec.json.Encoder().encode


_PADDING = b',"obfuscation":""'
#: The size of a padded delta is a multiple of this number of bytes.
_PADDED_BYTES = 64


def pad_delta(line: bytes) -> bytes:
    """Return an event with random characters in the field ``obfuscation``, so that its size does
    not reveal the length of its text. An event without a text is returned unchanged. ``line``: the
    JSON of the event."""
    if not line[_TYPE : line.index(b'"', _TYPE)].endswith(b".delta"):
        return line
    return _padded(line)


def pad_chunks(frames: bytes) -> bytes:
    """Return the frames of another API with their JSON objects padded like deltas. Comments are
    unchanged."""
    return b"\n".join(
        line[:6] + _padded(line[6:]) if line.startswith(b"data: ") else line
        for line in frames.split(b"\n")
    )


def _padded(line: bytes) -> bytes:
    count = -(len(line) + len(_PADDING)) % _PADDED_BYTES
    return b'%b,"obfuscation":"%b"}' % (
        line[:-1],
        secrets.token_hex(_PADDED_BYTES)[:count].encode(),
    )


def resume_comment(after: int) -> bytes:
    """Return the last words of a stream whose server stops. ``after``: number of the last event; -1
    if there was none."""
    place = b" with starting_after=%d" % after if after >= 0 else b""
    return b": The server was stopped. Resume the stream%b.\n\n" % place


def frame_lines(lines: Iterable[bytes]) -> bytes:
    """Return events as SSE frames. ``lines``: the events as JSON. ``type`` must be the first key of
    each event, because this function reads the event's type at a fixed position in the JSON."""
    pieces: list[bytes] = []
    for line in lines:
        name = line[_TYPE : line.index(b'"', _TYPE)]
        pieces += (b"event: ", name, b"\ndata: ", line, b"\n\n")
    return b"".join(pieces)


def frame_pieces(lines: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    """Yield events as SSE frames, in pieces that the caller sends in order. ``lines``: the events
    as JSON. A long event is split into several pieces, so no copy of the whole event is made."""
    if sum(map(len, lines)) <= _MAX_PIECE_BYTES:
        yield frame_lines(map(bytes, lines))
        return
    for line in lines:
        head = bytes(line[:_MAX_HEAD_BYTES])
        name = head[_TYPE : head.index(b'"', _TYPE)]
        yield b"event: %b\ndata: " % name
        for start in range(0, len(line), _MAX_PIECE_BYTES):
            yield bytes(line[start : start + _MAX_PIECE_BYTES])
        yield b"\n\n"


def frame_events(events: Sequence[Event], *, pads: bool = False) -> bytes:
    """Encode events as SSE, one frame for each event. A frame has exactly two lines, because the
    JSON contains no line ends. ``pads``: whether deltas are padded."""
    if pads:
        return frame_lines([pad_delta(_encode(encodable_event(event))) for event in events])
    if len(events) == 1:  # the usual case
        event = encodable_event(events[0])
        return _HEADS[type(event)] + _encode(event) + b"\n\n"
    return b"".join(
        [_HEADS[type(event)] + _encode(encodable_event(event)) + b"\n\n" for event in events]
    )
