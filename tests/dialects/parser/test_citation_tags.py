"""Citation tags of Cohere's models."""

from __future__ import annotations

import pytest

from antiphon.dialects.formats.reasoning_formats import REASONING
from antiphon.dialects.parser.citation_tags import CitationTagParser
from antiphon.dialects.parser.parser import FormatParser
from antiphon.inference.tokens import Chunk, TokenLogprob
from antiphon.stream.deltas import Text
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.replies import items, read

TOKENIZER = ByteTokenizer(())


def parser() -> CitationTagParser:
    form = REASONING["cohere"]
    inner = FormatParser(TOKENIZER, reasoning=form, tools=None, shapes={}, thinking=False)
    return CitationTagParser(inner, form.citation)


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("The <co>tallest</co: 0:[1]> <co>bird</co: 0:[0,2],1:[3]>.", "The tallest bird."),
        ("<co: 0,1>A</co: 0,1> b", "A b"),
        ("<co>All</co>", "All"),
        ("a < b, <code>, <co", "a < b, <code>, <co"),
        ("</co:" + "1" * 100 + ">", "</co:" + "1" * 100 + ">"),
        ("</", "</"),
    ],
)  # fmt: skip
def test_tags_are_dropped_however_the_output_is_cut(output: str, answer: str) -> None:
    ids = TOKENIZER.encode(output, special=False)
    for size in (1, 2, 5, len(ids)):
        chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
        found, _ = items(read(parser(), chunks))
        assert found == [{"message": answer}]


def test_log_probabilities_of_tags_go_with_the_next_text() -> None:
    created = parser()
    ids = tuple(TOKENIZER.encode("<co>A", special=False))
    deltas = [*created.feed(Chunk(ids, logprobs=tuple(TokenLogprob(id, -1.0) for id in ids)))]
    (text,) = (delta for delta in deltas if isinstance(delta, Text))
    assert (text.text, len(text.logprobs)) == ("A", 5)
