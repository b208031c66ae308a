"""Texts cut into chunks that overlap, at the ends of paragraphs, lines or words.

Tokens are estimated, by one rule for all models: up to six letters of a word, one ideograph, one
other sign. English and code come out about as large as with the tokenizers of today's models.
"""

from __future__ import annotations

import re
from itertools import pairwise

from msgspec import Struct

__all__ = ["Piece", "cut", "joined", "tokens"]

#: With the blanks before it.
_TOKEN = re.compile(r"\s*(?:[⺀-\U0010ffff]|[^\W⺀-\U0010ffff]{1,6}|[^\w\s])|\s+")


class Piece(Struct, frozen=True):
    """A chunk: where it begins, in characters, and its text."""

    start: int
    text: str


def tokens(text: str) -> int:
    """About how many tokens a text is."""
    return sum(1 for _ in _TOKEN.finditer(text))


def cut(text: str, size: int, overlap: int) -> list[Piece]:
    """Pieces of at most ``size`` tokens, each beginning about ``overlap`` before the end of the one
    before; all of the text is in one of them. None of a text without words."""
    starts = [found.start() for found in _TOKEN.finditer(text)]
    if not text.strip():
        return []
    starts.append(len(text))
    last = len(starts) - 1
    step = size - overlap
    begin, pieces = 0, []
    while begin + size < last:
        end = _end(text, starts, begin + size - step // 2, begin + size)
        pieces.append((begin, end))
        begin = _end(text, starts, end - overlap, min(end, end - overlap + step // 8))
    pieces.append((begin, last))
    return [Piece(starts[at], text[starts[at] : starts[end]]) for at, end in pieces]


def _end(text: str, starts: list[int], least: int, most: int) -> int:
    """The best token to end before, of those between the bounds: the last that begins a paragraph,
    or a line, or a word."""
    for mark in ("\n\n", "\n", " "):
        for at in range(most, least - 1, -1):
            if text.startswith(mark, starts[at]):
                return at
    return most


def joined(pieces: list[Piece]) -> str:
    """The text that was cut."""
    said = [one.text[: max(0, following.start - one.start)] for one, following in pairwise(pieces)]
    return "".join((*said, *(piece.text for piece in pieces[-1:])))
