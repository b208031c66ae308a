"""Words without end, cut: llama.cpp parts texts into words by regular expressions of C++ for many
models, and these go one call deeper a character, until the stack and with it the process ends.

What is cut has other tokens than it had whole, and the same text. It knows no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["split_long_words"]

#: Characters of one kind that are looked for in a row. No longer run is left than twice as many.
_RUN_LENGTH = 500
_LONG_RUN = re.compile(rf"\w{{{_RUN_LENGTH}}}|\s{{{_RUN_LENGTH}}}|[^\w\s]{{{_RUN_LENGTH}}}")


def split_long_words(text: str, literals: Mapping[str, int]) -> Iterator[str]:
    """The text in pieces, most often one. No cut is within one of ``literals``."""
    start = 0
    for at in range(0, len(text) - _RUN_LENGTH + 1, _RUN_LENGTH):
        if _LONG_RUN.match(text, at):
            for cut in (
                _cut_position(text, at, literals),
                _cut_position(text, at + _RUN_LENGTH, literals),
            ):
                if cut > start:
                    yield text[start:cut]
                    start = cut
    if start < len(text) or not text:
        yield text[start:]


def _cut_position(text: str, at: int, literals: Mapping[str, int]) -> int:
    """``at``, or the beginning of the literal that it is in the midst of."""
    around = text[max(0, at - 1) : at + 1]
    for literal in literals:
        if around not in literal:
            continue
        first = text.find(literal, max(0, at - len(literal) + 1), at + len(literal) - 1)
        if first != -1 and first < at < first + len(literal):
            return first
    return at
