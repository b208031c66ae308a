"""Find the known name that a misspelt name means."""

from __future__ import annotations

from collections.abc import Iterable

#: A name with fewer letters than the first number may have as many wrong letters as the second one.
_LIMITS = ((3, 0), (10, 1))
_LIMIT_OF_LONG_NAMES = 2


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to ``name``, or None if no name is so similar that
    ``name`` is a misspelling of it. Case and separators do not count, as in ``maxOutputTokens``."""
    letters = _letters(name)
    limit = next((most for size, most in _LIMITS if len(letters) < size), _LIMIT_OF_LONG_NAMES)
    distances = {
        each: _edits(letters, other)
        for each in known
        if abs(len(other := _letters(each)) - len(letters)) <= limit
    }
    best = min(distances, key=distances.__getitem__, default=None)
    return best if best is not None and distances[best] <= limit else None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()


def _edits(one: str, other: str) -> int:
    """Return how many letters must be inserted, removed, replaced or swapped with their neighbour
    to turn ``one`` into ``other``."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one):
        last, before, row = before, row, [at + 1]
        for number, wanted in enumerate(other):
            edits = min(row[-1] + 1, before[number + 1] + 1, before[number] + (letter != wanted))
            if at and number and letter == other[number - 1] and wanted == one[at - 1]:
                edits = min(edits, last[number - 1] + 1)
            row.append(edits)
    return row[-1]
