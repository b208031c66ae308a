"""Words without end, which llama.cpp cannot take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.llama.long_words import split_long_words
from antiphon.engines.llama.tokenizer import LlamaTokenizer
from tests.hypothesis_settings import examples
from tests.tiny_models.unpacked import tiny_gpt_oss

LITERALS = {"<|end|>": 1, "!!": 2}
RUNS = st.lists(
    st.tuples(
        st.sampled_from(["a", "1", " ", "!", "<", "語", "a b", "<|end|>"]), st.integers(1, 1500)
    )
)


@examples(50)
@given(runs=RUNS)
def test_pieces_join_to_the_text_and_have_no_long_runs(runs: list[tuple[str, int]]) -> None:
    text = "".join(letters * times for letters, times in runs)
    parts = list(split_long_words(text, {}))
    assert "".join(parts) == text
    for part in parts:
        assert all(len(run[0]) < 1000 for run in re.finditer(r"\w+|\s+|[^\w\s]+", part))


def test_what_has_ends_is_left_whole() -> None:
    for text in ("", "a", "a" * 499, "word " * 10_000, "x" * 450 + "." + "x" * 450):
        assert list(split_long_words(text, {})) == [text]


def test_no_cut_is_within_a_literal() -> None:
    for before in range(990, 1010):
        text = "?" * before + "<|end|>" + "." * 1000
        parts = list(split_long_words(text, LITERALS))
        assert "".join(parts) == text and any("<|end|>" in part for part in parts)


@pytest.mark.e2e
def test_gpt_oss_reads_them() -> None:
    tokenizer = LlamaTokenizer(tiny_gpt_oss())
    text = "a" * 100_000 + "<|end|>"
    for special in (True, False):
        ids = tokenizer.encode(text, special=special)
        assert b"".join(map(tokenizer.piece, ids)).decode() == text
        assert (ids[-1] == tokenizer.special["<|end|>"]) is special
