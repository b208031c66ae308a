"""Citations of several kinds in one message: told where they stand, wherever the text is cut."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.runs.tool_loop.turn import Turn
from antiphon.stream.deltas import Annotate, Close, Text
from antiphon.tools.citations import CitationReader
from antiphon.tools.file_search.citations import file_citation_notation
from antiphon.tools.web_search.citations import page_citation_notation
from antiphon.tools.web_search.page import WebPage
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
#: One that names something.
MARK = re.compile(r"【(?:1†[^【】]{0,64}|f1(?:†[^【】]{0,200})?)】")
#: Marks that name something or nothing, halves of marks, and text that is longer in UTF-16 or UTF-8
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
    """What is said, what is cited, and how many tokens were told of."""
    reader = CitationReader(NOTATIONS)
    given = [Text(piece, (Logprob(token=piece, logprob=-1.0),)) for piece in pieces]
    deltas = [out for each in given for out in reader.feed(each)] + list(reader.finish())
    said, cited, told = "", list[Annotation](), 0
    for delta in deltas:
        if isinstance(delta, Annotate):
            cited.append(delta.annotation)
            end = getattr(delta.annotation, "end_index", None)
            assert (getattr(delta.annotation, "index", None) if end is None else end) == len(said)
        else:
            assert isinstance(delta, Text)
            said += delta.text
            told += len(delta.logprobs)
    return said, cited, told


@pytest.mark.requirement("WS-PLACES")
@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data())
@example(["🦊", "【f1】", "【1†L3】"], None)
def test_what_is_cited_stands_where_it_is_said_to(written: list[str], data: st.DataObject) -> None:
    text = "".join(written)
    cuts = data.draw(st.sets(st.integers(0, len(text)))) if data is not None else set[int]()
    pieces = [text[a:b] for a, b in pairwise(sorted({0, *cuts, len(text)}))]
    said, cited, told = read(pieces)
    assert (said, cited) == read([text])[:2] == read(list(text))[:2], "the cuts do not matter"
    assert told == len(pieces), "no token is lost"
    for each in cited:
        if isinstance(each, UrlCitation):
            assert said[each.start_index : each.end_index] == LINK
        else:
            assert isinstance(each, FileCitation)
    assert len(cited) == len(MARK.findall(text))
    assert said.count(LINK) == sum(isinstance(each, UrlCitation) for each in cited)


@pytest.mark.requirement("WS-PLACES")
def test_a_file_cited_before_a_page_does_not_move_it() -> None:
    said, cited, _ = read(["🦊 Warm【f1】. ", "Dry【1†L3】 and", " cold 【f1】."])
    assert said == f"🦊 Warm. Dry {LINK} and cold."
    file, page, again = cited
    assert isinstance(file, FileCitation) and isinstance(again, FileCitation)
    assert isinstance(page, UrlCitation)
    assert said[: file.index] == "🦊 Warm" and said[: again.index].endswith(" cold")
    assert said[page.start_index : page.end_index] == LINK


@pytest.mark.parametrize("mark", ["【1†L3】", "【f1】"])
def test_a_mark_is_said_in_one_piece(mark: str) -> None:
    reader = CitationReader(NOTATIONS)
    assert not [out for sign in mark[:-1] for out in reader.feed(Text(sign))]
    said = list(reader.feed(Text(mark[-1])))
    assert [type(each) for each in said] == ([Text, Annotate] if "f" not in mark else [Annotate])


def test_a_message_that_was_interrupted_is_cited_behind_what_it_said() -> None:
    begun = Message(role="assistant", content=(OutputText(text="So 🦊"),), status="in_progress")
    turn = Turn(
        {}, lambda prefix: f"{prefix}_1", begun=begun, reader=lambda: CitationReader(NOTATIONS)
    )
    text, noted, _ = turn.take([Text("【1†L3】"), Close()])
    assert isinstance(text, Text) and text.text == f" {LINK}"
    assert isinstance(noted, Annotate) and isinstance(noted.annotation, UrlCitation)
    assert noted.annotation.start_index == len("So 🦊 ")
