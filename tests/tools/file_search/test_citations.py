"""Citations of files: marks are removed from the text, in any chunking."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.stream.deltas import Annotate, Text
from antiphon.tools.citations import CitationReader
from antiphon.tools.file_search.citations import file_citation_notation
from antiphon.wire.parts import FileCitation

TEXT = "Oslo 【f1】. A 【 b 【f9】 c【f2†two.txt】 【f1†L2-L3】end 【f1"
READ = "Oslo. A 【 b 【f9】 cend 【f1"


def read(pieces: list[str]) -> tuple[str, list[tuple[str, int]]]:
    reader = CitationReader(
        [file_citation_notation({1: ("file-1", "one.txt"), 2: ("file-2", "two.txt")}.get)]
    )
    deltas = [d for piece in pieces for d in reader.feed(Text(piece))] + list(reader.finish())
    text = ""
    citations = []
    for delta in deltas:
        if isinstance(delta, Annotate):
            assert isinstance(delta.annotation, FileCitation)
            assert delta.annotation.index == len(text), "the position is the end of the text so far"
            citations.append((delta.annotation.file_id, delta.annotation.index))
        else:
            assert isinstance(delta, Text)
            text += delta.text
    return text, citations


@given(st.sets(st.integers(0, len(TEXT))))
def test_chunking_does_not_change_file_citations(cuts: set[int]) -> None:
    pieces = [TEXT[a:b] for a, b in pairwise(sorted({0, *cuts, len(TEXT)}))]
    citations = [("file-1", 4), ("file-2", READ.index("end")), ("file-1", READ.index("end"))]
    assert read(pieces) == (READ, citations)


def test_unclosed_mark_is_released() -> None:
    reader = CitationReader([file_citation_notation(lambda number: None)])
    deltas = list(reader.feed(Text("【" + "x" * 300)))
    assert [d.text for d in deltas if isinstance(d, Text)] == ["【" + "x" * 300]
