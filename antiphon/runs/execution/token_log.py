"""The token log of a run: all token ids that the model sampled, in one append-only array.

Each later turn of the tool loop starts with a new prompt. The log records a new prompt as four
entries:

1. a marker,
2. the number of token ids at the beginning of the conversation so far that the prompt keeps,
3. the number of token ids that the prompt adds after them,
4. the added ids.

The ids before the first marker were sampled after the run's first prompt. The first prompt itself
is not in the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from antiphon.tokens import common_prefix_length

__all__ = ["append_prompt", "last_turn", "total_counts", "turn_counts"]

#: Marks a new prompt. No token has this id.
_MARKER = 0xFFFFFFFF


def append_prompt(log: array[int], first_prompt: Sequence[int], prompt: Sequence[int]) -> None:
    """Append the prompt of a new turn to ``log``, the token log of a run. ``first_prompt``: the
    prompt of the run's first turn."""
    before, sampled = last_turn(first_prompt, log)
    base = common_prefix_length((*before, *sampled), prompt)
    log.extend((_MARKER, base, len(prompt) - base, *prompt[base:]))


def last_turn(first_prompt: Sequence[int], log: array[int]) -> tuple[Sequence[int], array[int]]:
    """Return the prompt of the last turn in the token log ``log``, and the token ids sampled after
    it."""
    *_, last = _turns(first_prompt, log)
    return last


def turn_counts(first_prompt: Sequence[int], log: array[int]) -> tuple[tuple[int, int], ...]:
    """Return, for each turn in the token log ``log``, the number of prompt tokens and the number of
    sampled tokens. Turns without sampled tokens are left out."""
    turns = _turns(first_prompt, log)
    return tuple((len(prompt), len(sampled)) for prompt, sampled in turns if sampled)


def total_counts(first_prompt: Sequence[int], log: array[int]) -> tuple[int, int]:
    """Return the number of prompt tokens and the number of sampled tokens in the token log ``log``,
    summed over all turns. Every turn counts its whole prompt."""
    turns = list(_turns(first_prompt, log))
    return sum(len(prompt) for prompt, _ in turns), sum(len(sampled) for _, sampled in turns)


def _turns(prompt: Sequence[int], log: array[int]) -> Iterator[tuple[Sequence[int], array[int]]]:
    """Yield, for each turn in the token log ``log``, its prompt and the token ids sampled after it.
    ``prompt``: the prompt of the first turn."""
    start = 0
    while True:
        try:
            marker = log.index(_MARKER, start)
        except ValueError:
            yield prompt, log[start:]
            return
        base, count = log[marker + 1], log[marker + 2]
        sampled = log[start:marker]
        yield prompt, sampled
        start = marker + 3 + count
        prompt = (*(*prompt, *sampled)[:base], *log[marker + 3 : start])
