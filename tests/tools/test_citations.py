"""Citations of several kinds in one message, in any chunking."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.runs.tool_loop.turn import Turn
from antiphon.stream.deltas import Annotate, Close, Text
from antiphon.tools.citations import CitationReader
from antiphon.tools.file_search.provider import file_citation_notation
from antiphon.tools.web_search.page import WebPage
from antiphon.tools.web_search.provider import page_citation_notation
from antiphon.wire.items import Logprob, Message, OutputText
from antiphon.wire.parts import Annotation, FileCitation, UrlCitation

URL = "https://north.example/a?b=(c)"
LINK = "([north.example](https://north.example/a?b=%28c%29))"
NOTATIONS = (
    page_citation_notation(
        {1: WebPage.from_text(URL, "Oslo", "x"), 2: WebPage.from_results("y", ())}.get
    ),
    file_citation_notation({1: ("file-1", "one.txt")}.get),
)
#: A mark with a target.
MARK = re.compile(r"【(?:1†[^【】]{0,64}|f1(?:†[^【】]{0,200})?)】")
#: Marks with and without a target, incomplete marks, and text that is longer in UTF-16 or UTF-8
#: than in code points.
PIECES = [
    *(
        "【1†L3】",
        "【1†L3-L5】",
        "【f1】",
        " 【f1†one.txt】",
        "【2†L1】",
        "【9†L1】",
        "【f9】",
        "【x】",
    ),
    *("【", "】", "【1†", "【f1", "†", " ", "\n", "a", "🦊", "e\u0301", "東京", "【1†" + "x" * 90),
]


def read(pieces: list[str]) -> tuple[str, list[Annotation], int]:
    """Return the text, the citations and the number of log probabilities."""
    reader = CitationReader(NOTATIONS)
    text_deltas = [Text(piece, (Logprob(token=piece, logprob=-1.0),)) for piece in pieces]
    deltas = [out for each in text_deltas for out in reader.feed(each)] + list(reader.finish())
    output_text, annotations, logprob_count = "", list[Annotation](), 0
    for delta in deltas:
        if isinstance(delta, Annotate):
            annotations.append(delta.annotation)
            end = getattr(delta.annotation, "end_index", None)
            assert (getattr(delta.annotation, "index", None) if end is None else end) == len(
                output_text
            )
        else:
            assert isinstance(delta, Text)
            output_text += delta.text
            logprob_count += len(delta.logprobs)
    return output_text, annotations, logprob_count


@pytest.mark.requirement("WS-PLACES")
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data())
@example(["🦊", "【f1】", "【1†L3】"], None)
def test_annotations_point_at_their_text(marks: list[str], data: st.DataObject) -> None:
    text = "".join(marks)
    cuts = data.draw(st.sets(st.integers(0, len(text)))) if data is not None else set[int]()
    pieces = [text[a:b] for a, b in pairwise(sorted({0, *cuts, len(text)}))]
    output_text, annotations, logprob_count = read(pieces)
    assert (output_text, annotations) == read([text])[:2] == read(list(text))[:2], (
        "chunking does not matter"
    )
    assert logprob_count == len(pieces), "no token is lost"
    for each in annotations:
        if isinstance(each, UrlCitation):
            assert output_text[each.start_index : each.end_index] == LINK
        else:
            assert isinstance(each, FileCitation)
    assert len(annotations) == len(MARK.findall(text))
    assert output_text.count(LINK) == sum(isinstance(each, UrlCitation) for each in annotations)


@pytest.mark.requirement("WS-PLACES")
def test_file_citation_does_not_shift_page_citation() -> None:
    output_text, annotations, _ = read(["🦊 Warm【f1】. ", "Dry【1†L3】 and", " cold 【f1】."])
    assert output_text == f"🦊 Warm. Dry {LINK} and cold."
    file, page, second_file = annotations
    assert isinstance(file, FileCitation) and isinstance(second_file, FileCitation)
    assert isinstance(page, UrlCitation)
    assert output_text[: file.index] == "🦊 Warm" and output_text[: second_file.index].endswith(
        " cold"
    )
    assert output_text[page.start_index : page.end_index] == LINK


@pytest.mark.parametrize("mark", ["【1†L3】", "【f1】"])
def test_mark_is_emitted_in_one_piece(mark: str) -> None:
    reader = CitationReader(NOTATIONS)
    assert not [out for sign in mark[:-1] for out in reader.feed(Text(sign))]
    output_text = list(reader.feed(Text(mark[-1])))
    assert [type(each) for each in output_text] == (
        [Text, Annotate] if "f" not in mark else [Annotate]
    )


def test_citations_of_a_resumed_message_follow_its_text() -> None:
    interrupted = Message(
        role="assistant", content=(OutputText(text="So 🦊"),), status="in_progress"
    )
    turn = Turn(
        {},
        lambda prefix: f"{prefix}_1",
        open_item=interrupted,
        new_citation_reader=lambda: CitationReader(NOTATIONS),
    )
    text, annotate, _ = turn.feed([Text("【1†L3】"), Close()])
    assert isinstance(text, Text) and text.text == f" {LINK}"
    assert isinstance(annotate, Annotate) and isinstance(annotate.annotation, UrlCitation)
    assert annotate.annotation.start_index == len("So 🦊 ")
