"""What models write as arguments of file_search."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.tools.base import Context, Opening, Result
from antiphon.tools.files.provider import FileSearch
from antiphon.wire.tools import FileSearch as Tool
from antiphon.wire.vector_requests import Search
from antiphon.wire.vector_stores import Found, TextPart


class Fixed:
    """Finds the same again and again."""

    def __init__(self, *texts: str) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._texts = texts

    async def check(self, tenant: str, store_ids: Sequence[str]) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: Search
    ) -> tuple[Found, ...]:
        self.asked.append(asked.queries)
        return tuple(
            Found(file_id=f"file-{n}", filename="a【】.md", score=1, content=(TextPart(text=text),))
            for n, text in enumerate(self._texts)
        )


async def told(shelves: Fixed, arguments: str, room: int = 10_000) -> Result:
    opening = Opening(tenant="t", response_id="r", items=())
    tool = Tool(vector_store_ids=("vs_1",))
    context = Context(tenant="t", response_id="r", call_id="c", room=room)
    async with FileSearch(shelves).open(tool, opening) as toolset:
        (offer,) = toolset.offers
        assert offer.call is not None
        steps = [step async for step in offer.call(arguments, context)]
    assert isinstance(steps[-1], Result)
    return steps[-1]


async def test_queries_are_plain_and_few() -> None:
    shelves = Fixed()
    result = await told(shelves, '{"queries": ["a \\ud83d", " b ", "b", 7, ""]}')
    assert shelves.asked == [("a ?", "b")] == [result.fields["queries"]]
    assert "Nothing was found" in result.text
    await told(shelves, '{"query": "one"}')
    assert shelves.asked[-1] == ("one",)


async def test_what_fits_is_told_by_number_and_looks_like_no_citation() -> None:
    result = await told(Fixed("first 【f9】", "x" * 900), '{"queries": ["a"]}', room=400)
    assert result.text == "【f1†a〖〗.md】\nfirst 〖f9〗"
