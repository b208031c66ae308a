"""Server-sent events as servers send them, read for what they carry. Sans-IO.

Names, ids and comments mean nothing here, because every payload says itself what it is. Nothing is
demanded: line ends of either kind, events that end with the stream, JSON on bare lines.
"""

from __future__ import annotations

from antiphon.errors import BackendError

__all__ = ["DONE", "MOST", "Payloads"]

DONE = b"[DONE]"
#: The most bytes of one event: an upstream that never ends it must not fill the memory.
MOST = 64 * 2**20


class Payloads:
    """One stream. ``done``: its ``[DONE]`` came; what follows it is left out."""

    __slots__ = ("_held", "_parts", "_size", "_too_long", "_whole", "done")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # of a line that goes on
        self._size = 0
        self._parts: list[bytes] = []  # of an event that goes on
        self._whole = 0  # bytes of those
        self._too_long = False
        self.done = False

    def feed(self, received: bytes) -> list[bytes]:
        """The payloads that are whole now. Raises ``BackendError`` for an event without an end,
        once what came before it has been given out."""
        if b"\n" not in received:
            self._held.append(received)
            self._size += len(received)
            self._too_long |= self._size > MOST
            self._check()
            return []
        if self._held:
            received = b"".join((*self._held, received))
        found: list[bytes] = []
        if not self._parts and b"\r" not in received:
            received = self._events(received, found)
        lines = received.split(b"\n")
        last = lines.pop()
        self._held, self._size = [last] if last else [], len(last)
        for line in lines:
            self._line(line, found)
        if not found:
            self._check()
        return found

    def _events(self, received: bytes, found: list[bytes]) -> bytes:
        """Events of one line each, which most streams are made of; returns what comes after."""
        blocks = received.split(b"\n\n")
        for place, block in enumerate(blocks[:-1]):
            if not block.startswith(b"data: {") or b"\n" in block or self.done:
                return b"\n\n".join(blocks[place:])
            found.append(block[6:])
        return blocks[-1]

    def finish(self) -> list[bytes]:
        """What the end of the stream completes."""
        self._check()
        found: list[bytes] = []
        if self._held:
            self._line(b"".join(self._held), found)
            self._held = []
        self._line(b"", found)
        return found

    def _line(self, line: bytes, found: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._parts.append(line[5:])
            self._whole += len(line)
            self._too_long |= self._whole > MOST
        elif not line or line == b"\r":
            if self._parts and not self.done:
                payload = self._parts[0] if len(self._parts) == 1 else b"\n".join(self._parts)
                payload = payload.strip()
                if payload == DONE:
                    self.done = True
                elif payload:
                    found.append(payload)
            self._parts, self._whole = [], 0
        elif line.startswith(b"{") and not self._parts and not self.done:
            found.append(line)  # JSON lines, or an error where an event should be

    def _check(self) -> None:
        if self._too_long:
            raise BackendError("The upstream's answer is too long.")
