"""The tools of stories: real web search, file search and MCP over scripted sources.

A word in a query decides what happens: ``slow`` never ends, ``broken`` fails, and at ``wait`` the
client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from antiphon.errors import RunError, ToolError
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionKey
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.page import SearchResult, WebPage
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire.parsing.vector_stores import SearchRequest
from antiphon.wire.resources.vector_stores import TextPart
from antiphon.wire.resources.vector_stores import VectorStoreSearchResult as Piece

_URL = "https://north.example/fjords"


class ScriptedWords:
    """Obeys the words of queries. ``leave`` disconnects the client."""

    leave: Callable[[], object] = staticmethod(lambda: None)

    async def obey(self, words: str, broken: Exception) -> None:
        if "wait" in words:
            self.leave()
        if "wait" in words or "slow" in words:
            await asyncio.Event().wait()
        if "broken" in words:
            raise broken

    def providers(self) -> dict[str, AnyToolProvider]:
        """Return the tool providers by tool type."""
        pool: Any = _Pool(self)
        return {
            "file_search": FileSearchProvider(_FileStores(self)),
            "web_search": WebSearchProvider(_WebPages(self), is_external=False),
            "mcp": McpProvider({"home": McpEndpoint(url="http://home.example/mcp")}, pool),
        }


class _WebPages:
    def __init__(self, words: ScriptedWords) -> None:
        self._words = words

    async def search(self, query: str, request: SearchOptions) -> tuple[SearchResult, ...]:
        await self._words.obey(query, ToolError("The search engine does not answer."))
        return (SearchResult(url=_URL, title="Fjords", text="Narrow inlets."),)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        return WebPage.from_text(url, "Fjords", "A fjord is a narrow inlet.")

    async def close(self) -> None: ...


class _FileStores:
    def __init__(self, words: ScriptedWords) -> None:
        self._words = words

    async def check_searchable(self, *named: object) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[Piece, ...]:
        await self._words.obey(" ".join(request.queries), RunError("The store does not answer."))
        part = TextPart(text="A fjord is a narrow inlet.")
        return (Piece(file_id="file-1", filename="fjords.md", score=1.0, content=(part,)),)


class _Pool:
    """Runs questions on an MCP client with one tool."""

    def __init__(self, words: ScriptedWords) -> None:
        self._words = words

    async def call(self, key: SessionKey, question: Any) -> Any:
        return await question(self)

    async def close(self) -> None: ...

    async def list_tools(self, cursor: str | None = None, meta: object = None) -> ListToolsResult:
        schema = {"type": "object", "properties": {"word": {"type": "string"}}}
        return ListToolsResult(tools=[Tool(name="echo", input_schema=schema)])

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], meta: object
    ) -> CallToolResult:
        word = str(arguments.get("word"))
        await self._words.obey(word, RuntimeError("secret"))
        is_error = word == "refused"
        return CallToolResult(content=[TextContent(text=word)], is_error=is_error)
