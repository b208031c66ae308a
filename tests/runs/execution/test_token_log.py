"""The token log of a run: prompts in between store only what they add."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from antiphon.runs.execution.token_log import (
    append_prompt,
    last_turn,
    total_counts,
    turn_counts,
)

IDS = st.lists(st.integers(0, 300_000), max_size=8)


@given(prompt=IDS, turns=st.lists(st.tuples(IDS, IDS), max_size=4), last=IDS)
def test_last_turn_returns_prompt_and_sampled_tokens(
    prompt: list[int], turns: list[tuple[list[int], list[int]]], last: list[int]
) -> None:
    tape, expected = array("I"), list(prompt)
    for sampled, ids in turns:
        tape.extend(sampled)
        append_prompt(tape, prompt, ids)
        expected = ids
    tape.extend(last)
    before, after = last_turn(prompt, tape)
    assert (list(before), list(after)) == (expected, last)
    is_replaced = bool(turns) and not turns[0][0]
    read = sum(len(ids) for _, ids in turns) + (0 if is_replaced else len(prompt))
    assert total_counts(prompt, tape) == (
        read,
        len(last) + sum(len(sampled) for sampled, _ in turns),
    )


def test_turns_without_tokens_are_not_counted() -> None:
    tape = array("I", [1, 2])
    append_prompt(tape, [7, 8, 9], [7, 8, 9, 1, 2, 5])
    assert turn_counts([7, 8, 9], tape) == ((3, 2),)
    tape.append(6)
    assert turn_counts([7, 8, 9], tape) == ((3, 2), (6, 1))


def test_new_prompt_stores_only_added_tokens() -> None:
    prompt, tape = list(range(1000)), array("I", [1, 2, 3])
    append_prompt(tape, prompt, [*prompt, 1, 2, 3, 9])
    assert len(tape) == 3 + 3 + 1
