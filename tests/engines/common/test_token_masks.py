"""Grammars over the tiny model's vocabulary: what may come next."""

from __future__ import annotations

import json

import pytest

from antiphon.engines.common.token_masks import TokenMaskFactory
from antiphon.engines.huggingface.model_folder import read_folder
from antiphon.errors import BackendError
from tests.tiny_models.tiny_tools import FOLDER

SIZE = 1000  # more than there are tokens, as embeddings often are


def spell(lark: str) -> str:
    """What a model writes that takes the first token it may."""
    tokenizer = read_folder(FOLDER).tokenizer
    grammars = TokenMaskFactory(FOLDER / "tokenizer.json", SIZE, sorted(tokenizer.end_ids))
    mask = grammars.mask(lark)
    written = b""
    for _ in range(40):
        forbidden = mask.forbidden_tokens()
        assert forbidden.shape == (SIZE,) and forbidden[tokenizer.size :].all()
        token = int(forbidden.argmin())
        assert not forbidden[token]
        mask.accept(token)
        if token in tokenizer.end_ids:
            return written.decode()
        written += tokenizer.piece(token)
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
    tokenizer = read_folder(FOLDER).tokenizer
    grammars = TokenMaskFactory(FOLDER / "tokenizer.json", SIZE, sorted(tokenizer.end_ids))
    mask = grammars.mask('start: "a"')
    mask.accept(tokenizer.encode("a", special=False)[0])
    allowed = {token for token, no in enumerate(mask.forbidden_tokens()) if not no}
    assert allowed == tokenizer.end_ids


def test_forbidden_token_raises() -> None:
    tokenizer = read_folder(FOLDER).tokenizer
    grammars = TokenMaskFactory(FOLDER / "tokenizer.json", SIZE, sorted(tokenizer.end_ids))
    mask = grammars.mask('start: "a"')
    with pytest.raises(BackendError, match="grammar failed"):
        mask.accept(tokenizer.encode("b", special=False)[0])
