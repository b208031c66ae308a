"""The tools of stories: web_search, file_search and mcp as they are, over sources that do what a
word says. ``slow`` never ends, ``broken`` fails; at ``wait`` the client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from antiphon.errors import RunError, ToolError
from antiphon.tools.base import ToolProvider
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.transport import McpEndpoint
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.page import SearchResult, WebPage
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire.parsing.vector_stores import SearchRequest
from antiphon.wire.vector_stores import TextPart
from antiphon.wire.vector_stores import VectorStoreSearchResult as Piece

__all__ = ["Words"]

_URL = "https://north.example/fjords"


class Words:
    """Does what they say. ``leave``: has the client leave."""

    leave: Callable[[], object] = staticmethod(lambda: None)

    async def obey(self, words: str, broken: Exception) -> None:
        if "wait" in words:
            self.leave()
        if "wait" in words or "slow" in words:
            await asyncio.Event().wait()
        if "broken" in words:
            raise broken

    def providers(self) -> dict[str, ToolProvider]:
        """The tools that do."""
        pool: Any = _Pool(self)
        return {
            "file_search": FileSearchProvider(_Shelves(self)),
            "web_search": WebSearchProvider(_Pages(self), is_external=False),
            "mcp": McpProvider({"home": McpEndpoint(url="http://home.example/mcp")}, pool),
        }


class _Pages:
    def __init__(self, words: Words) -> None:
        self._words = words

    async def search(self, query: str, asked: SearchOptions) -> tuple[SearchResult, ...]:
        await self._words.obey(query, ToolError("The search engine does not answer."))
        return (SearchResult(url=_URL, title="Fjords", text="Narrow inlets."),)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        return WebPage.from_text(url, "Fjords", "A fjord is a narrow inlet.")

    async def close(self) -> None: ...


class _Shelves:
    def __init__(self, words: Words) -> None:
        self._words = words

    async def check_searchable(self, *named: object) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: SearchRequest
    ) -> tuple[Piece, ...]:
        await self._words.obey(" ".join(asked.queries), RunError("The store does not answer."))
        part = TextPart(text="A fjord is a narrow inlet.")
        return (Piece(file_id="file-1", filename="fjords.md", score=1.0, content=(part,)),)


class _Pool:
    """Asks a client of one tool."""

    def __init__(self, words: Words) -> None:
        self._words = words

    async def call(self, tenant: str, server: McpEndpoint, question: Any) -> Any:
        return await question(self)

    async def close(self) -> None: ...

    async def list_tools(self, cursor: str | None = None) -> ListToolsResult:
        schema = {"type": "object", "properties": {"word": {"type": "string"}}}
        return ListToolsResult(tools=[Tool(name="echo", input_schema=schema)])

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        word = str(arguments.get("word"))
        await self._words.obey(word, RuntimeError("secret"))
        is_error = word == "refused"
        return CallToolResult(content=[TextContent(text=word)], is_error=is_error)


def _providers() -> dict[str, ToolProvider]:
    pool: Any = _Pool()
    return {
        "file_search": FileSearchProvider(_Shelves()),
        "web_search": WebSearchProvider(_Pages(), is_external=False),
        "mcp": McpProvider({"home": McpEndpoint(url="http://home.example/mcp")}, pool),
    }
