"""Parse server-sent events into their payloads. This module does no I/O.

Event names, ids and comments are ignored, because every payload contains its type. The parser
accepts LF and CRLF line ends, a missing blank line at the end of the stream, and lines of plain
JSON.
"""

from __future__ import annotations

from operator import itemgetter

from antiphon.errors import BackendError

DONE = b"[DONE]"
#: Maximum number of bytes of one event or response. Without this limit, an upstream could use up
#: the memory.
MAX_RESPONSE_BYTES = 64 * 2**20

#: How the lines with the name and with the payload of an event begin.
_NAME, _DATA = b"event: ", b"data: "
_OBJECT_STARTS = frozenset(b"{")
_first_byte = itemgetter(0)
#: Numbers, because ``in`` finds them at once. For bytes, it first raises and catches an exception.
_CR, _LF = b"\r\n"


class SseParser:
    """Parses one stream of server-sent events. ``done``: True after ``[DONE]`` was received. All
    later data is ignored."""

    __slots__ = (
        "_data_lines",
        "_event_bytes",
        "_is_too_long",
        "_pending_bytes",
        "_pending_line",
        "done",
    )

    def __init__(self) -> None:
        self._pending_line: list[bytes] = []  # of an incomplete line
        self._pending_bytes = 0
        self._data_lines: list[bytes] = []  # of an incomplete event
        self._event_bytes = 0  # bytes of the data lines
        self._is_too_long = False
        self.done = False

    def feed(self, received: bytes) -> list[bytes]:
        """Parse the next bytes of the stream and return the payloads that they complete.

        Raises ``BackendError`` for an event that exceeds ``MAX_RESPONSE_BYTES``. If earlier
        payloads are complete, this call returns them, and the next call raises the error.
        """
        if not (self._pending_line or self._data_lines or self.done):
            payloads = _payloads_of(received)
            if payloads is not None:
                return self._until_done(payloads) if DONE in payloads else payloads
        return self._read_lines(received)

    def _until_done(self, payloads: list[bytes]) -> list[bytes]:
        """Return the payloads that precede ``[DONE]``."""
        self.done = True
        return payloads[: payloads.index(DONE)]

    def _read_lines(self, received: bytes) -> list[bytes]:
        if _LF not in received:
            self._pending_line.append(received)
            self._pending_bytes += len(received)
            self._is_too_long |= self._pending_bytes > MAX_RESPONSE_BYTES
            self._check_size()
            return []
        if self._pending_line:
            received = b"".join((*self._pending_line, received))
        payloads: list[bytes] = []
        lines = received.split(b"\n")
        last = lines.pop()
        self._pending_line, self._pending_bytes = [last] if last else [], len(last)
        for line in lines:
            self._read_line(line, payloads)
        if not payloads:
            self._check_size()
        return payloads

    def finish(self) -> list[bytes]:
        """End the stream. If the last event is not followed by a blank line, the end of the stream
        completes this event, and its payload is returned."""
        self._check_size()
        payloads: list[bytes] = []
        if self._pending_line:
            self._read_line(b"".join(self._pending_line), payloads)
            self._pending_line = []
        self._read_line(b"", payloads)
        return payloads

    def _read_line(self, line: bytes, payloads: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data_lines.append(line[5:])
            self._event_bytes += len(line)
            self._is_too_long |= self._event_bytes > MAX_RESPONSE_BYTES
        elif not line or line == b"\r":
            if self._data_lines and not self.done:
                payload = (
                    self._data_lines[0]
                    if len(self._data_lines) == 1
                    else b"\n".join(self._data_lines)
                )
                payload = payload.strip()
                if payload == DONE:
                    self.done = True
                elif payload:
                    payloads.append(payload)
            self._data_lines, self._event_bytes = [], 0
        elif line.startswith(b"{") and not self._data_lines and not self.done:
            payloads.append(line)  # JSON lines, or an error where an event should be

    def _check_size(self) -> None:
        if self._is_too_long:
            raise BackendError("The upstream's answer is too long.", permanent=True)


def _payloads_of(received: bytes) -> list[bytes] | None:
    """Return the payloads of complete events of the usual forms: an optional name, and a payload of
    one line, which is a JSON object or ``[DONE]``. Return None for anything else.

    Nearly all that upstreams send has one of these forms. It is split as a whole, because lines are
    much slower to find one by one.
    """
    names: list[bytes] = []
    if received.startswith(_DATA):
        payloads = received[len(_DATA) : -2].split(b"\n\n" + _DATA)
    elif received.startswith(_NAME):
        events = received[len(_NAME) : -2].split(b"\n\n" + _NAME)
        parts = [event.partition(b"\n" + _DATA) for event in events]
        names, payloads = [part[0] for part in parts], [part[2] for part in parts]
    else:
        return None
    objects = payloads[:-1] if payloads[-1] == DONE else payloads
    lines = b"".join((*names, *payloads))
    is_usual = (
        received.endswith(b"\n\n")
        and _LF not in lines
        and _CR not in lines
        and all(objects)
        and set(map(_first_byte, objects)) <= _OBJECT_STARTS
    )
    return payloads if is_usual else None
