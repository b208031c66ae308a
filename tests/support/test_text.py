"""Truncation of text in the middle, and replacement of lone surrogates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.support.text import (
    nesting_depth,
    replace_lone_surrogates,
    replace_lone_surrogates_in_json,
    similar_name,
    truncate_middle,
)


@given(st.text(max_size=300), st.integers(1, 200))
def test_truncated_text_keeps_both_ends_within_the_limit(text: str, limit: int) -> None:
    cut = truncate_middle(text, limit)
    if len(text) <= 2 or len(text.encode("utf-8", "replace")) <= limit:
        assert cut == text
        return
    head, middle, tail = cut.split("\n[… ")[0], "characters left out", cut.split(" …]\n")[-1]
    assert middle in cut and text.startswith(head) and text.endswith(tail)
    assert len(head) + len(tail) <= max(2, limit)


@pytest.mark.parametrize("letter", ["x", "я", "語"])
def test_the_limit_is_in_bytes_by_default(letter: str) -> None:
    cut = truncate_middle(letter * 10_000, 900)
    assert 850 < cut.count(letter) * len(letter.encode()) <= 900


def test_the_limit_can_be_in_characters() -> None:
    text = "語" * 1000
    assert truncate_middle(text, 1000, unit="characters") == text
    cut = truncate_middle(text, 900, unit="characters")
    assert cut.count("語") == 900
    assert "[… 100 characters left out …]" in cut


@given(st.text(st.characters(exclude_categories=[])))
def test_the_result_can_be_encoded_and_only_surrogates_change(text: str) -> None:
    clean = replace_lone_surrogates(text)
    clean.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert clean == text


def test_halves_become_replacement_characters_and_pairs_their_character() -> None:
    assert replace_lone_surrogates("a\ud800b\udfff") == "a\ufffdb\ufffd"
    assert replace_lone_surrogates("\ud83d\ude00") == "😀"


def test_all_strings_and_keys_of_a_json_value_are_cleaned() -> None:
    value = {"a\ud800": ["\udfff", 1, None, {"b": "ok"}]}
    assert replace_lone_surrogates_in_json(value) == {"a\ufffd": ["\ufffd", 1, None, {"b": "ok"}]}


def test_depth_is_that_of_the_deepest_bracket() -> None:
    assert nesting_depth("") == nesting_depth("))]") == 0
    assert nesting_depth("a(b)[c{d}]") == 2
    assert nesting_depth("((([])", "[", "]") == 1


NAMES = ["port", "host", "max_output_tokens", "top_p", "load", "log-format"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("potr", "port"),
        ("ports", "port"),
        ("maxOutputToken", "max_output_tokens"),
        ("TOP-P", "top_p"),
        ("log_fromat", "log-format"),
        ("path", None),
        ("posts", None),
        ("max_tokens", None),
        ("load-forms", None),
        ("hs", None),
        ("", None),
    ],
)
def test_only_misspellings_mean_a_known_name(name: str, meant: str | None) -> None:
    assert similar_name(name, NAMES) == meant
    assert similar_name(name, []) is None
