"""The token log of a run: the token ids that the model sampled, and the prompts of all turns after
the first, in one append-only array.

The log begins with the ids that were sampled in the first turn of the tool loop. The prompt of the
first turn is not in the log. Each later turn appends its prompt and then the ids that were sampled
after this prompt. A new prompt usually begins with the ids of the previous turn (its prompt and its
sampled ids). So the log contains only the rest of the new prompt, in this form:

1. a marker,
2. the number of ids that the new prompt takes over from the beginning of the previous turn,
3. the number of ids in the rest of the new prompt,
4. these ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from antiphon.inference.tokens import common_prefix_length

#: Marks a new prompt. No token has this id.
_MARKER = 0xFFFFFFFF


def append_prompt(log: array[int], first_prompt: Sequence[int], prompt: Sequence[int]) -> None:
    """Append the prompt of a new turn to ``log``, the token log of a run. ``first_prompt``: the
    prompt of the run's first turn. This function needs it to compute the prompt of the previous
    turn, and the log does not contain it."""
    before, sampled = last_turn(first_prompt, log)
    base = common_prefix_length((*before, *sampled), prompt)
    log.extend((_MARKER, base, len(prompt) - base, *prompt[base:]))


def last_turn(first_prompt: Sequence[int], log: array[int]) -> tuple[Sequence[int], array[int]]:
    """Return the prompt of the last turn in the token log ``log``, and the token ids that were
    sampled after this prompt. ``first_prompt``: the prompt of the run's first turn."""
    *_, last = _turns(first_prompt, log)
    return last


def turn_counts(first_prompt: Sequence[int], log: array[int]) -> tuple[tuple[int, int], ...]:
    """Return, for each turn in the token log ``log``, the number of prompt tokens and the number of
    sampled tokens. Turns without sampled tokens are left out."""
    turns = _turns(first_prompt, log)
    return tuple((len(prompt), len(sampled)) for prompt, sampled in turns if sampled)


def total_counts(first_prompt: Sequence[int], log: array[int]) -> tuple[int, int]:
    """Return the number of prompt tokens and the number of sampled tokens in the token log ``log``,
    summed over all turns. Every turn counts its whole prompt. A first prompt that was replaced
    before the model wrote anything is not counted."""
    turns = list(_turns(first_prompt, log))
    if len(turns) > 1 and not turns[0][1]:
        del turns[0]
    return sum(len(prompt) for prompt, _ in turns), sum(len(sampled) for _, sampled in turns)


def _turns(prompt: Sequence[int], log: array[int]) -> Iterator[tuple[Sequence[int], array[int]]]:
    """Yield the prompt of each turn in the token log ``log``, together with the token ids that were
    sampled after this prompt. ``prompt``: the prompt of the first turn."""
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
