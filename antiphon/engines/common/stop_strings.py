"""Find stop strings in a stream of tokens. A stop string may span several tokens. Sans-IO.

The search gets the bytes of each token. It returns how many tokens can be sent. A token can be sent
as soon as it is certain that the token contains no part of a stop string.
"""

from __future__ import annotations

from collections import deque

__all__ = ["StopStrings"]


class StopStrings:
    """Searches one stream for stop strings. The stream consists of pieces. Each piece is the bytes
    of one token.

    Pieces that may contain a part of a stop string are held back. ``matched_stop``: the stop string
    that was found, or None. ``tail``: the text before the stop string in the piece where the stop
    string starts.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = [(stop, stop.encode("utf-8", "replace")) for stop in stops if stop]
        self._buffer = b""  # bytes of the pieces not yet released
        self._lengths: deque[int] = deque()
        self.matched_stop: str | None = None
        self.tail = ""

    def feed(self, piece: bytes) -> int:
        """Add the next piece, which is the bytes of one token. Return how many pieces this call
        releases. The oldest pieces are released first. The other pieces stay held back.

        A released piece contains no part of a stop string, so the caller can send its token. When
        this method sets ``matched_stop``, the pieces that are still held back contain the stop
        string. They are never released.
        """
        self._buffer += piece
        self._lengths.append(len(piece))
        # The earliest end, then the longest match: the same as reading byte by byte.
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
        """Remove the pieces that end within the first ``length_limit`` bytes of the buffer. Return
        the number of these pieces, and their total length in bytes."""
        count = length = 0
        while self._lengths and length + self._lengths[0] <= length_limit:
            length += self._lengths.popleft()
            count += 1
        self._buffer = self._buffer[length:]
        return count, length

    def _partial_match_length(self) -> int:
        """Return the length of the buffer's longest suffix that is a prefix of a stop string."""
        longest = 0
        for _, stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._buffer)), longest, -1):
                if self._buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
