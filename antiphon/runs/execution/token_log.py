"""The token ids behind a run, in the order in which they were sampled. Where tools ran in between,
the prompt of the next turn stands there too: as a mark, how much of what was before it keeps, and
the ids behind that. So the ids of a run are one array that only grows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from antiphon.tokens import common_prefix_length

__all__ = ["append_prompt", "last_turn", "total_counts", "turn_counts"]

#: No token has this id.
_MARK = 0xFFFFFFFF


def append_prompt(tape: array[int], prompt: Sequence[int], ids: Sequence[int]) -> None:
    """Note on ``tape``, which began with ``prompt``, that the model is asked anew with ``ids``."""
    before, sampled = last_turn(prompt, tape)
    base = common_prefix_length((*before, *sampled), ids)
    tape.extend((_MARK, base, len(ids) - base, *ids[base:]))


def last_turn(prompt: Sequence[int], tape: array[int]) -> tuple[Sequence[int], array[int]]:
    """The last prompt, and what was sampled after it."""
    *_, last = _turns(prompt, tape)
    return last


def turn_counts(prompt: Sequence[int], tape: array[int]) -> tuple[tuple[int, int], ...]:
    """Tokens read and tokens sampled, of each turn that has sampled any."""
    turns = _turns(prompt, tape)
    return tuple((len(read), len(sampled)) for read, sampled in turns if sampled)


def total_counts(prompt: Sequence[int], tape: array[int]) -> tuple[int, int]:
    """Tokens read and tokens sampled, over all turns: every turn reads its whole prompt."""
    turns = list(_turns(prompt, tape))
    return sum(len(read) for read, _ in turns), sum(len(sampled) for _, sampled in turns)


def _turns(prompt: Sequence[int], tape: array[int]) -> Iterator[tuple[Sequence[int], array[int]]]:
    """The prompt of each turn, and what was sampled after it."""
    start = 0
    while True:
        try:
            mark = tape.index(_MARK, start)
        except ValueError:
            yield prompt, tape[start:]
            return
        base, count = tape[mark + 1], tape[mark + 2]
        sampled = tape[start:mark]
        yield prompt, sampled
        start = mark + 3 + count
        prompt = (*(*prompt, *sampled)[:base], *tape[mark + 3 : start])
