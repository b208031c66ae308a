"""Split very long words, because llama.cpp would crash on them.

A word is a sequence of characters of one class: letters and digits, white space, or all other
characters. For many models, llama.cpp splits text into words with std::regex. std::regex recurses
once per character, so a very long word overflows the stack. A split word has different tokens but
the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

#: Length of a run of one character class that triggers a split. Remaining runs are shorter than
#: twice this length.
_RUN_LENGTH = 500
_LONG_RUN = re.compile(rf"\w{{{_RUN_LENGTH}}}|\s{{{_RUN_LENGTH}}}|[^\w\s]{{{_RUN_LENGTH}}}")


def split_long_words(text: str, literals: Mapping[str, int]) -> Iterator[str]:
    """Yield the text in pieces that have no very long words, which would crash llama.cpp. Usually
    there is only one piece.

    ``literals``: text of a special token → its id. These texts are never split.
    """
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
    """Return the index where the text is cut. This is ``at``, or the start of a special token if a
    cut at ``at`` would split the text of this token. ``literals``: text of a special token → its
    id."""
    neighbours = text[max(0, at - 1) : at + 1]
    for literal in literals:
        if neighbours not in literal:
            continue
        first = text.find(literal, max(0, at - len(literal) + 1), at + len(literal) - 1)
        if first != -1 and first < at < first + len(literal):
            return first
    return at
