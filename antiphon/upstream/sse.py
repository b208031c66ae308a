"""Parse server-sent events into their payloads. This module does no I/O.

Event names, ids and comments are ignored, because every payload contains its type. The parser
accepts LF and CRLF line ends, a missing blank line at the end of the stream, and lines of plain
JSON.
"""

from __future__ import annotations

import re

from antiphon.errors import BackendError

__all__ = ["DONE", "MAX_RESPONSE_BYTES", "SseParser"]

DONE = b"[DONE]"
#: Maximum number of bytes of one event or response. Without this limit, an upstream could use up
#: the memory.
MAX_RESPONSE_BYTES = 64 * 2**20

#: The first byte of an event → a pattern for events of its form, and the number of their lines.
#: Nearly all streams have one of these two forms. The payload is a JSON object or ``[DONE]``.
_FORMS = {
    b"d": (re.compile(rb"^data: (\{[^\n]*|\[DONE\])\n\n", re.MULTILINE), 2),
    b"e": (re.compile(rb"^event: [^\n]*\ndata: (\{[^\n]*|\[DONE\])\n\n", re.MULTILINE), 3),
}


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
            form = _FORMS.get(received[:1])
            if form is not None:
                payloads = form[0].findall(received)
                # Whether nothing else was received.
                if payloads and received.count(b"\n") == form[1] * len(payloads):
                    if received[-1:] == b"\n" and b"\r" not in received:
                        return self._until_done(payloads) if DONE in payloads else payloads
        return self._read_lines(received)

    def _until_done(self, payloads: list[bytes]) -> list[bytes]:
        """Return the payloads that precede ``[DONE]``."""
        self.done = True
        return payloads[: payloads.index(DONE)]

    def _read_lines(self, received: bytes) -> list[bytes]:
        if b"\n" not in received:
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
            raise BackendError("The upstream's answer is too long.")
