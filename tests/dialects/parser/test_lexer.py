"""The lexer: terminals of text and of special tokens, and what waits for more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.formats.tool_formats import TOOLS
from antiphon.dialects.formats.types import START, TEXT, THINKING
from antiphon.dialects.parser.lexer import Lexer, StateTerminals, is_special, strip_marks
from antiphon.testing.tokenizer import ByteTokenizer

WORDS = {"<a>": ("one", False), "<ab": ("two", False), "b<": ("three", True)}


@given(st.text(st.sampled_from("<ab>c"), max_size=12))
def test_only_a_terminal_prefix_waits(text: str) -> None:
    """Before what waits there is no terminal; what waits begins one, and is as long as can be."""
    at, terminal = StateTerminals(WORDS).find(text, final=False)
    assert not any(word in text[:at] for word in WORDS)
    if terminal is not None:
        assert text.startswith(terminal, at)
    elif at < len(text):
        assert any(word.startswith(text[at:]) for word in WORDS)
    else:
        assert not any(text.endswith(word[:n]) for word in WORDS for n in range(1, len(word)))


def test_at_the_end_nothing_waits() -> None:
    assert StateTerminals(WORDS).find("c<a", final=False) == (1, None)
    assert StateTerminals(WORDS).find("c<a", final=True) == (3, None)
    assert StateTerminals(WORDS).find("c<a>", final=True) == (1, "<a>")


def test_longest_terminal_is_taken() -> None:
    terminals = StateTerminals({"<a": ("one", False), "<ab>": ("two", False)})
    assert terminals.find("<ab>", final=False) == (0, "<ab>")
    assert terminals.find("<ab", final=False) == (0, None)
    assert terminals.find("<ac", final=False) == (0, "<a")


def lexer(tools: str, *special: str) -> tuple[Lexer, ByteTokenizer]:
    tokenizer = ByteTokenizer(special)
    return Lexer(tokenizer, REASONING["think"], TOOLS[tools]), tokenizer


def test_special_token_is_not_text() -> None:
    created, tokenizer = lexer("hermes", "<tool_call>", "<think>", "<pad>")
    mark = created.marks[tokenizer.special["<tool_call>"]]
    assert len(mark) == 1 and is_special(mark) and not is_special("<tool_call>")
    assert created.states[START].transitions[mark] == ("records", False)
    assert "<tool_call>" not in created.states[START].transitions
    assert "</tool_call>" in created.states["records"].transitions  # this one is text here
    assert created.spell_out(f"a{mark}b") == "a<tool_call>b"
    assert strip_marks(f"a{mark}b") == "ab"


def test_tokens_that_no_format_uses_are_dropped() -> None:
    created, tokenizer = lexer("hermes", "<pad>", "<b>", "<tool_call>")
    assert created.is_dropped(tokenizer.special["<pad>"])
    assert all(map(created.is_dropped, tokenizer.end_ids))
    assert not created.is_dropped(tokenizer.special["<tool_call>"])
    assert not created.is_dropped(tokenizer.special["<b>"])  # vocabularies with tokens for HTML
    assert not created.is_dropped(ord("a"))


def test_terminal_may_mix_tokens_and_text() -> None:
    created, tokenizer = lexer("deepseek_v32", "｜DSML｜")
    mark = created.marks[tokenizer.special["｜DSML｜"]]
    leads = created.states[START].transitions
    assert f"<{mark}function_calls>" in leads and "<｜DSML｜function_calls>" not in leads


def test_spelled_opening_tag_is_text_in_an_answer() -> None:
    spelled, _ = lexer("hermes")
    assert (
        "<think>" in spelled.states[START].transitions
        and "<think>" in spelled.states[THINKING].transitions
    )
    assert "<think>" not in spelled.states[TEXT].transitions
    special, tokenizer = lexer("hermes", "<think>")
    mark = special.marks[tokenizer.special["<think>"]]
    assert special.states[TEXT].transitions[mark] == (THINKING, False)
