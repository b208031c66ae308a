"""Sets of characters. A set is written as ranges of code points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

#: The first and the last code point of each range. The ranges ascend, and no range touches the
#: next range.
Ranges = tuple[tuple[int, int], ...]

_LAST_CODE_POINT = 0x10FFFF
#: Every character except surrogates.
ALL_CHARACTERS: Ranges = ((0, 0xD7FF), (0xE000, _LAST_CODE_POINT))


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Return the characters that are in at least one of the sets."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(each for ranges in sets for each in ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters in both sets."""
    overlaps = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return union((first, last) for first, last in overlaps if first <= last)


def complement(ranges: Ranges) -> Ranges:
    """Return the characters that are not in ``ranges``."""
    edges = [-1, *(edge for first, last in ranges for edge in (first - 1, last)), _LAST_CODE_POINT]
    gaps = ((edges[n] + 1, edges[n + 1]) for n in range(0, len(edges), 2))
    return intersection(
        ALL_CHARACTERS, union((first, last) for first, last in gaps if first <= last)
    )


@cache
def category_ranges(name: str) -> Ranges:
    r"""Return the characters that certainly belong to a category such as ``\d`` or ``\W``.

    ``name``: the letter of the category, such as ``d``. To keep the sets short, some non-ASCII
    characters are left out of both a category and its negation. For example, ``é`` is neither in
    ``\w`` nor in ``\W``. So where a regex has ``\w`` or ``\W``, the model cannot write ``é``. But
    every text that the model can write is valid.
    """
    return _CATEGORIES[name]()


_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = (*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ASCII: Ranges = ((0, 0x7F),)


def _matching(predicate: Callable[[str], bool]) -> Ranges:
    return union((code, code) for code in range(_LAST_CODE_POINT + 1) if predicate(chr(code)))


_CATEGORIES: Mapping[str, Callable[[], Ranges]] = {
    "d": lambda: _DIGIT,
    "w": lambda: _WORD,
    "s": lambda: _SPACE,
    "D": lambda: complement(_matching(str.isdecimal)),
    "W": lambda: intersection(_ASCII, complement(_WORD)),
    "S": lambda: complement(_matching(str.isspace)),
}
