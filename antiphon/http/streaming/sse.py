"""Events as bytes of a ``text/event-stream``. All that is ready goes out in one write, each event
whole; nothing waits for more. It does not know where events come from.

Line ends are LF, ``event`` repeats ``type``, there is no ``id``, and ``[DONE]`` comes last: what
the strictest of the known parsers asks for. Obfuscation (random padding of deltas) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from antiphon.wire.events import EVENTS, Event

__all__ = ["DONE", "HEADERS", "framed", "frames"]

#: The last line of every stream.
DONE = b"data: [DONE]\n\n"

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx would hold the events back otherwise.
    (b"x-accel-buffering", b"no"),
)

_HEADS: Mapping[type[Event], bytes] = {
    event: f"event: {name}\ndata: ".encode() for name, event in EVENTS.items()
}
#: Where the type begins in an event's JSON.
_TYPE = len(b'{"type":"')
_encode = msgspec.json.Encoder().encode


def framed(lines: Iterable[bytes]) -> bytes:
    """Events that are JSON already, one frame each. Their ``type`` comes first."""
    pieces: list[bytes] = []
    for line in lines:
        name = line[_TYPE : line.index(b'"', _TYPE)]
        pieces += (b"event: ", name, b"\ndata: ", line, b"\n\n")
    return b"".join(pieces)


def frames(events: Sequence[Event]) -> bytes:
    """The events, one frame each. JSON has no raw line ends, so a frame is two lines."""
    if len(events) == 1:  # nearly always
        event = events[0]
        return _HEADS[type(event)] + _encode(event) + b"\n\n"
    return b"".join([_HEADS[type(event)] + _encode(event) + b"\n\n" for event in events])
