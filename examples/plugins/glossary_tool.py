"""A tool that replaces web search by a glossary, the table ``[tool_options.glossary]``."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antiphon.errors import ToolError
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire.items import WebSearchCall
from antiphon.wire.tools import Function

LOOK_UP = Function(
    name="look_up",
    description="Explains a term.",
    parameters={
        "type": "object",
        "properties": {"term": {"type": "string"}},
        "required": ["term"],
    },
)


class Glossary(ToolProvider[Any]):
    """A tool provider."""

    def __init__(self, terms: Mapping[str, str]) -> None:
        self._terms = terms

    @asynccontextmanager
    async def open(self, tool: Any, response: ResponseContext) -> AsyncIterator[Toolset]:
        call = WebSearchCall(action={"type": "search", "query": "", "queries": []})
        function = ToolFunction(
            tool=LOOK_UP, initial_item=call, handler=self._look_up, effects="none"
        )
        yield Toolset(functions=(function,))

    async def _look_up(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        yield ToolProgress("searching")
        try:
            text = self._terms[json.loads(arguments)["term"]]
        except (ValueError, KeyError, TypeError):
            raise ToolError("The glossary does not have this term.") from None
        yield ToolResult(text=text)


@asynccontextmanager
async def open_tool(dependencies: Any) -> AsyncIterator[Mapping[str, Glossary]]:
    """Open the providers, by tool type of the API; with ``web_search.engine = "off"``."""
    yield {"web_search": Glossary(dependencies.settings.tool_options.get("glossary", {}))}
