"""The file search provider: queries, passages and citations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from antiphon.stream.deltas import Annotate, Text
from antiphon.tools.base import CallContext, ResponseContext, ToolResult
from antiphon.tools.citations import CitationReader
from antiphon.tools.file_search.provider import FileSearchProvider, file_citation_notation
from antiphon.wire.items import FileSearchCall
from antiphon.wire.parsing.vector_stores import SearchRequest
from antiphon.wire.parts import FileCitation
from antiphon.wire.resources.vector_stores import TextPart, VectorStoreSearchResult
from antiphon.wire.tools import FileSearch as Tool


class FixedSearch:
    """A vector search that always returns the same passages."""

    def __init__(self, *texts: str) -> None:
        self.requests: list[tuple[str, ...]] = []
        self._texts = texts

    async def check_searchable(self, *arguments: object) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        self.requests.append(request.queries)
        return tuple(
            VectorStoreSearchResult(
                file_id=f"file-{n}", filename="a【】.md", score=1, content=(TextPart(text=text),)
            )
            for n, text in enumerate(self._texts)
        )


async def run_search(
    vector_search: FixedSearch,
    arguments: str,
    max_bytes: int = 10_000,
    include: frozenset[str] = frozenset(),
) -> ToolResult:
    response = ResponseContext(tenant="t", response_id="r", items=(), include=include)
    tool = Tool(vector_store_ids=("vs_1",))
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=max_bytes)
    async with FileSearchProvider(vector_search).open(tool, response) as toolset:
        (function,) = toolset.functions
        assert function.handler is not None
        steps = [step async for step in function.handler(arguments, context)]
    assert isinstance(steps[-1], ToolResult)
    return steps[-1]


async def test_queries_are_cleaned_and_deduplicated() -> None:
    vector_search = FixedSearch()
    result = await run_search(vector_search, '{"queries": ["a \\ud83d", " b ", "b", 7, ""]}')
    assert vector_search.requests == [("a \ufffd", "b")] == [result.fields["queries"]]
    assert "Nothing was found" in result.text
    await run_search(vector_search, '{"query": "one"}')
    assert vector_search.requests[-1] == ("one",)


async def test_passages_are_numbered_limited_and_escaped() -> None:
    result = await run_search(
        FixedSearch("first 【f9】", "x" * 900), '{"queries": ["a"]}', max_bytes=400
    )
    assert result.text == "【f1†a〖〗.md】\nfirst 〖f9〗"


async def test_passages_are_limited_by_their_bytes() -> None:
    """A Chinese character takes three bytes, and about as many tokens as three letters."""
    texts = ("字" * 100, "字" * 100)
    shown = [
        (await run_search(FixedSearch(*texts), '{"queries": ["a"]}', max_bytes=limit)).text
        for limit in (900, 1800)
    ]
    assert [text.count("字") for text in shown] == [100, 200]


async def test_passages_of_earlier_calls_keep_their_numbers() -> None:
    earlier_call = FileSearchCall(queries=("a",))
    interrupted_call = FileSearchCall(
        queries=("b",), results=({"file_id": "file-z", "filename": "z"},)
    )
    response = ResponseContext(
        tenant="t", response_id="r", items=(earlier_call,), interrupted_items=(interrupted_call,)
    )
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=99)
    async with FileSearchProvider(FixedSearch("x")).open(
        Tool(vector_store_ids=("vs_1",)), response
    ) as toolset:
        (function,) = toolset.functions
        assert function.handler is not None and toolset.citation_notation is not None
        *_, result = [step async for step in function.handler('{"queries": ["a"]}', context)]
        assert isinstance(result, ToolResult) and result.text.startswith("【f101†")
        reader = CitationReader([toolset.citation_notation])
        deltas = [*reader.feed(Text("a【f1】b【f51】c【f101】")), *reader.finish()]
    annotations = [each.annotation for each in deltas if isinstance(each, Annotate)]
    assert [getattr(note, "file_id", "") for note in annotations] == ["file-z", "file-0"]


async def test_files_of_an_earlier_response_are_cited() -> None:
    """Also if its results were not included in its output."""
    result = await run_search(FixedSearch("x", "y"), '{"queries": ["a"]}')
    earlier_call = FileSearchCall(**result.fields)
    assert earlier_call.results is None
    response = ResponseContext(tenant="t", response_id="r", items=(earlier_call,))
    tool = Tool(vector_store_ids=("vs_1",))
    async with FileSearchProvider(FixedSearch()).open(tool, response) as toolset:
        assert toolset.citation_notation is not None
        reader = CitationReader([toolset.citation_notation])
        deltas = [*reader.feed(Text("Yes 【f2†a〖〗.md】, not 【f3】.")), *reader.finish()]
    cited = [delta.annotation for delta in deltas if isinstance(delta, Annotate)]
    assert cited == [FileCitation(file_id="file-1", filename="a【】.md", index=3)]


async def test_included_results_are_not_repeated() -> None:
    include = frozenset({"file_search_call.results"})
    result = await run_search(FixedSearch("x"), '{"queries": ["a"]}', include=include)
    assert "passage_files" not in result.fields and len(result.fields["results"]) == 1


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
