"""Words for full-text search, in indexed texts and in queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.common.search_terms import index_terms, query_terms

TEXTS = [
    ("最长的峡湾是松恩峡湾。", ["峡湾", "最长的峡湾", "湾"], ["冰川"]),
    ("東京タワーは333mです", ["東京", "タワー", "333m"], ["京都"]),
    ("피오르드는 좁다", ["피오르드", "좁다"], ["빙하"]),
    ("GPT模型很快", ["GPT", "模型", "gpt"], ["模糊"]),
    ("Fjords are narrow.", ["fjords"], ["lakes"]),
]


@pytest.mark.requirement("VS-WORDS")
@pytest.mark.parametrize(("text", "found", "missed"), TEXTS)
def test_unspaced_scripts_are_found(text: str, found: list[str], missed: list[str]) -> None:
    there = {word.lower() for word in query_terms(index_terms(text))} | set(
        index_terms(text).lower().split()
    )
    for question in found:
        assert there & {word.lower() for word in query_terms(question)}, question
    for question in missed:
        assert not there & set(query_terms(question)), question


@given(st.text(st.characters(max_codepoint=0x2E7F)))
def test_other_texts_are_indexed_unchanged(text: str) -> None:
    assert index_terms(text) == text


@given(st.text(st.sampled_from("峡湾タ한a1 。-"), max_size=20))
def test_query_terms_of_a_text_are_in_its_index_terms(text: str) -> None:
    there = query_terms(index_terms(text))
    assert set(query_terms(text)) <= {*there, *index_terms(text).split()}
    assert len(query_terms(text)) == len(set(query_terms(text)))
