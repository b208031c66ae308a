"""Operations on text that many layers share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal


def replace_lone_surrogates(text: str) -> str:
    """Return ``text`` in a form that UTF-8 can encode.

    The two halves of a surrogate pair can be separated: models and clients cut texts between them,
    and JSON can express a single half. A half without its counterpart becomes U+FFFD. Two adjacent
    halves become the character that they encode.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def replace_lone_surrogates_in_json(value: object) -> Any:
    """Replace lone surrogates by U+FFFD in all strings and keys of a JSON value. Raises
    ``RecursionError`` if the value is nested too deeply."""
    text = json.dumps(value, ensure_ascii=False)
    clean = replace_lone_surrogates(text)
    return value if clean is text else json.loads(clean)


def truncate_middle(
    text: str, limit: int, *, unit: Literal["bytes", "characters"] = "bytes"
) -> str:
    """Shorten a text that is longer than ``limit``: keep its beginning and its end, with a mark
    between them. Return a text within the limit unchanged.

    The mark states how many characters are missing. It does not count against the limit. At least
    one character remains on each side. The default unit is bytes of UTF-8, because in all scripts
    bytes predict the number of tokens better than characters do.
    """
    size = len(text)
    if unit == "bytes" and not text.isascii():
        size = len(text.encode("utf-8", "replace"))
    if size <= limit:
        return text
    side = max(1, limit * len(text) // size // 2)
    missing = len(text) - 2 * side
    if missing <= 0:
        return text
    return f"{text[:side]}\n[… {missing} characters left out …]\n{text[-side:]}"


def nesting_depth(text: str, opening: str = "{[(", closing: str = ")]}") -> int:
    """Return the nesting depth of the brackets in a text. Brackets inside strings count too, so
    this is an upper bound for JSON and for grammars. Takes linear time."""
    depth = deepest = 0
    for char in text:
        if char in opening:
            depth += 1
            deepest = max(deepest, depth)
        elif char in closing:
            depth = max(0, depth - 1)
    return deepest


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
