"""Split texts into overlapping chunks at the ends of paragraphs, lines or words.

Token counts are estimates, by one rule for all models. Each of these counts as one token: up to six
letters of a word, one ideograph, or one other character. For English and code, the estimates are
close to the counts of today's tokenizers.
"""

from __future__ import annotations

import re
from itertools import pairwise

from msgspec import Struct

#: One token, with the white space before it.
_TOKEN = re.compile(r"\s*(?:[⺀-\U0010ffff]|[^\W⺀-\U0010ffff]{1,6}|[^\w\s])|\s+")


class Passage(Struct, frozen=True):
    """A chunk of a text. ``start``: the offset of the chunk in the text, in characters."""

    start: int
    text: str


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text."""
    return sum(1 for _ in _TOKEN.finditer(text))


def split_text(text: str, size: int, overlap: int) -> list[Passage]:
    """Split a text into chunks of at most ``size`` tokens.

    Each chunk begins about ``overlap`` tokens before the end of the previous chunk. Together, the
    chunks cover the whole text. A text of only white space has no chunks.
    """
    starts = [found.start() for found in _TOKEN.finditer(text)]
    if not text.strip():
        return []
    starts.append(len(text))
    last = len(starts) - 1
    step = size - overlap
    start, chunks = 0, []
    while start + size < last:
        end = _find_boundary(text, starts, start + size - step // 2, start + size)
        chunks.append((start, end))
        start = _find_boundary(text, starts, end - overlap, min(end, end - overlap + step // 8))
    chunks.append((start, last))
    return [Passage(starts[index], text[starts[index] : starts[end]]) for index, end in chunks]


def _find_boundary(text: str, starts: list[int], first: int, last_candidate: int) -> int:
    """Choose the token boundary at which a chunk begins or ends. ``starts``: the positions in
    ``text`` where tokens start. The result is an index into ``starts``, from ``first`` to
    ``last_candidate``.

    Returns the first of these that exists:

    1. the last boundary directly before an empty line
    2. the last boundary directly before a line end
    3. the last boundary directly before a space
    4. ``last_candidate``
    """
    for mark in ("\n\n", "\n", " "):
        for index in range(last_candidate, first - 1, -1):
            if text.startswith(mark, starts[index]):
                return index
    return last_candidate


def join_chunks(chunks: list[Passage]) -> str:
    """Restore the text from its overlapping chunks."""
    parts = [
        chunk.text[: max(0, following.start - chunk.start)] for chunk, following in pairwise(chunks)
    ]
    return "".join((*parts, *(chunk.text for chunk in chunks[-1:])))
