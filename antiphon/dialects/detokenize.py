"""Bytes of tokens become text as soon as it is text: a character cut between tokens waits."""

from __future__ import annotations

import codecs

__all__ = ["Detokenizer"]


class Detokenizer:
    """One stream of token pieces. Bytes that are no UTF-8 become replacement characters."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, piece: bytes) -> str:
        """The text that is whole with this piece."""
        return self._decode(piece)

    def finish(self) -> str:
        """What was cut: at most one replacement character."""
        return self._decode(b"", True)
