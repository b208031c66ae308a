"""Finds stop strings in tokens as they come, whatever the tokens cut them into. Sans-IO.

It works on bytes and counts tokens; it knows neither ids nor engines.
"""

from __future__ import annotations

from collections import deque

__all__ = ["StopStrings"]


class StopStrings:
    """Says of a stream of pieces how many are free to go.

    ``found`` is the stop string that ended the text, if one did; ``tail`` is then the text before
    it in the token it begins in.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [(stop, stop.encode("utf-8", "replace")) for stop in stops if stop]
        self._buffer = b""  # what the pieces not yet let go spell
        self._lengths: deque[int] = deque()
        self.matched_stop: str | None = None
        self.tail = ""

    def feed(self, piece: bytes) -> int:
        """How many of the oldest pieces, of those given so far and not yet let go, may go.

        After ``found`` is set the others never may: the stop string is in them.
        """
        self._buffer += piece
        self._lengths.append(len(piece))
        # The first to end, and of these the longest: what reading byte by byte would find.
        ends = [
            (at + len(stop), at, text)
            for text, stop in self._stops
            if (at := self._buffer.find(stop)) >= 0
        ]
        if not ends:
            return self._release(len(self._buffer) - self._partial_match_length())[0]
        _, at, self.matched_stop = min(ends)
        count, length = self._release(at)
        self.tail = self._buffer[: at - length].decode("utf-8", "ignore")
        return count

    def _release(self, length_limit: int) -> tuple[int, int]:
        """Drop the pieces that end within the first ``safe`` bytes: how many, and their length."""
        count = length = 0
        while self._lengths and length + self._lengths[0] <= length_limit:
            length += self._lengths.popleft()
            count += 1
        self._buffer = self._buffer[length:]
        return count, length

    def _partial_match_length(self) -> int:
        """Length of the longest end of the held text that could be a stop string's beginning."""
        longest = 0
        for _, stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._buffer)), longest, -1):
                if self._buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
