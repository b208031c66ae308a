"""Words without end, cut: llama.cpp parts texts into words by regular expressions of C++ for many
models, and these go one call deeper a character, until the stack and with it the process ends.

What is cut has other tokens than it had whole, and the same text. It knows no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["pieces"]

#: Characters of one kind that are looked for in a row. No longer run is left than twice as many.
_RUN = 500
_UNBROKEN = re.compile(rf"\w{{{_RUN}}}|\s{{{_RUN}}}|[^\w\s]{{{_RUN}}}")


def pieces(text: str, literals: Mapping[str, int]) -> Iterator[str]:
    """The text in pieces, most often one. No cut is within one of ``literals``."""
    start = 0
    for at in range(0, len(text) - _RUN + 1, _RUN):
        if _UNBROKEN.match(text, at):
            for cut in (_beside(text, at, literals), _beside(text, at + _RUN, literals)):
                if cut > start:
                    yield text[start:cut]
                    start = cut
    if start < len(text) or not text:
        yield text[start:]


def _beside(text: str, at: int, literals: Mapping[str, int]) -> int:
    """``at``, or the beginning of the literal that it is in the midst of."""
    around = text[max(0, at - 1) : at + 1]
    for literal in literals:
        if around not in literal:
            continue
        first = text.find(literal, max(0, at - len(literal) + 1), at + len(literal) - 1)
        if first != -1 and first < at < first + len(literal):
            return first
    return at
