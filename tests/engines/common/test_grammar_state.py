"""Grammars over the tiny model's vocabulary: what may come next."""

from __future__ import annotations

import json

import pytest

from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.engines.huggingface.model_folder import read_folder
from tests.tiny_models.tiny_tools import FOLDER

SIZE = 1000  # more than there are tokens, as embeddings often are
TOKENIZER = read_folder(FOLDER).tokenizer


def state(lark: str) -> GrammarState:
    started = GrammarTracker(TOKENIZER).start(lark, (), TOKENIZER.end_ids)
    assert started is not None
    return started


def spell(lark: str) -> str:
    """What a model writes that takes the first token it may."""
    grammar = state(lark)
    written = b""
    for _ in range(40):
        forbidden = grammar.forbidden_tokens(SIZE)
        assert forbidden.shape == (SIZE,) and forbidden[TOKENIZER.size :].all()
        token = int(forbidden.argmin())
        assert not forbidden[token]
        assert grammar.accept((token,)) == 1
        if token in TOKENIZER.end_ids:
            return written.decode()
        written += TOKENIZER.piece(token)
    raise AssertionError("the grammar does not end")


def test_only_what_the_grammar_says_may_come() -> None:
    assert spell('start: "yes" | "yes, indeed"').startswith("yes")
    assert spell("start: /[0-9]{3}-[a-c]/")[3] == "-"


@pytest.mark.parametrize(
    "text", ["<tool_call>", "a</think>b", "<|im_end|><|im_start|>", "é<think>"]
)
def test_a_text_that_looks_like_a_control_token_is_spelled(text: str) -> None:
    call_text = json.dumps(text, ensure_ascii=False)
    assert spell(f"start: {call_text}") == text
    assert spell(f'start: %json {{"enum": [{call_text}]}}') == call_text
    assert spell('start: <[977]> "x"') == "<tool_call>x"  # and one that must come does


def test_every_end_token_ends_a_complete_grammar() -> None:
    grammar = state('start: "a"')
    grammar.accept(TOKENIZER.encode("a", special=False))
    allowed = {token for token, no in enumerate(grammar.forbidden_tokens(SIZE)) if not no}
    assert allowed == TOKENIZER.end_ids


def test_forbidden_token_is_not_accepted() -> None:
    assert state('start: "a"').accept(TOKENIZER.encode("b", special=False)) == 0
