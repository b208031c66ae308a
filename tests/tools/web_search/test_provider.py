"""The provider of web tools: which URLs ``web_fetch`` opens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.errors import ToolError
from antiphon.tools.base import CallContext, ResponseContext, ToolResult
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire.parsing.items import read_items
from antiphon.wire.tools import WebFetch

URL = "https://north.example/fjords"
OPENED: dict[str, Any] = {
    "type": "web_search_call",
    "action": {"type": "open_page", "url": URL},
}
FOUND = {"type": "web_search_call", "action": {"type": "search"}, "results": [{"url": URL}]}
CALL = {"call_id": "c", "name": "f"}


async def fetch(item: dict[str, Any]) -> ToolResult:
    index = PageIndex(":memory:")
    await index.add([PageDocument(url=URL, title="Fjords", text="A fjord.")])
    response = ResponseContext(tenant="t", response_id="r", items=read_items([item], "input"))
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=10_000)
    async with WebSearchProvider(index, is_external=False).open(WebFetch(), response) as toolset:
        open_page = next(each for each in toolset.functions if each.tool.name == "open")
        assert open_page.handler is not None
        arguments = msgspec.json.encode({"id": URL}).decode()
        try:
            *_, result = [step async for step in open_page.handler(arguments, context)]
        finally:
            await index.close()
    assert isinstance(result, ToolResult)
    return result


@pytest.mark.requirement("WS-FETCH")
@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": f"Read {URL}."},
        {"type": "function_call_output", "call_id": "c", "output": URL},
        FOUND,
        OPENED,
    ],
)
async def test_url_of_the_user_or_a_tool_is_opened(item: dict[str, Any]) -> None:
    assert "A fjord." in (await fetch(item)).text


@pytest.mark.requirement("WS-FETCH")
@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": URL},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": URL}]},
        {"type": "function_call", "arguments": URL, **CALL},
        {"type": "custom_tool_call", "input": URL, **CALL},
        {"type": "mcp_call", "server_label": "m", "name": "f", "arguments": URL},
        {"type": "code_interpreter_call", "container_id": "c", "code": URL},
        {**OPENED, "status": "failed"},
    ],
)
async def test_url_that_the_model_has_written_is_not_opened(item: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="Only URLs"):
        await fetch(item)
