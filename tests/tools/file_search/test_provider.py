"""What models write as arguments of file_search."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.stream.deltas import Annotate, Text
from antiphon.tools.base import CallContext, ResponseContext, ToolResult
from antiphon.tools.citations import CitationReader
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.wire.items import FileSearchCall
from antiphon.wire.parsing.vector_stores import SearchRequest
from antiphon.wire.tools import FileSearch as Tool
from antiphon.wire.vector_stores import SearchResult, TextPart


class Fixed:
    """Finds the same again and again."""

    def __init__(self, *texts: str) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._texts = texts

    async def check_searchable(self, tenant: str, store_ids: Sequence[str]) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: SearchRequest
    ) -> tuple[SearchResult, ...]:
        self.asked.append(asked.queries)
        return tuple(
            SearchResult(
                file_id=f"file-{n}", filename="a【】.md", score=1, content=(TextPart(text=text),)
            )
            for n, text in enumerate(self._texts)
        )


async def told(shelves: Fixed, arguments: str, room: int = 10_000) -> ToolResult:
    opening = ResponseContext(tenant="t", response_id="r", items=())
    tool = Tool(vector_store_ids=("vs_1",))
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=room)
    async with FileSearchProvider(shelves).open(tool, opening) as toolset:
        (offer,) = toolset.functions
        assert offer.handler is not None
        steps = [step async for step in offer.handler(arguments, context)]
    assert isinstance(steps[-1], ToolResult)
    return steps[-1]


async def test_queries_are_plain_and_few() -> None:
    shelves = Fixed()
    result = await told(shelves, '{"queries": ["a \\ud83d", " b ", "b", 7, ""]}')
    assert shelves.asked == [("a \ufffd", "b")] == [result.fields["queries"]]
    assert "Nothing was found" in result.text
    await told(shelves, '{"query": "one"}')
    assert shelves.asked[-1] == ("one",)


async def test_what_fits_is_told_by_number_and_looks_like_no_citation() -> None:
    result = await told(Fixed("first 【f9】", "x" * 900), '{"queries": ["a"]}', room=400)
    assert result.text == "【f1†a〖〗.md】\nfirst 〖f9〗"


async def test_what_an_interrupted_response_was_shown_keeps_its_number() -> None:
    before = FileSearchCall(queries=("a",))
    done = FileSearchCall(queries=("b",), results=({"file_id": "file-z", "filename": "z"},))
    opening = ResponseContext(
        tenant="t", response_id="r", items=(before,), interrupted_items=(done,)
    )
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=99)
    async with FileSearchProvider(Fixed("x")).open(
        Tool(vector_store_ids=("vs_1",)), opening
    ) as toolset:
        (offer,) = toolset.functions
        assert offer.handler is not None and toolset.citation_notation is not None
        *_, result = [step async for step in offer.handler('{"queries": ["a"]}', context)]
        assert isinstance(result, ToolResult) and result.text.startswith("【f101†")
        reader = CitationReader([toolset.citation_notation])
        deltas = [*reader.feed(Text("a【f1】b【f51】c【f101】")), *reader.finish()]
    notes = [each.annotation for each in deltas if isinstance(each, Annotate)]
    assert [getattr(note, "file_id", "") for note in notes] == ["file-z", "file-0"]
