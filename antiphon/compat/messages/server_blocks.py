"""Content blocks of the tools that the server runs: calls and their results.

Most calls are one item of the Responses API, which becomes two blocks. In the next request, the
client sends the blocks back, and ``content.py`` turns them into the item again.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.tools import Custom, Function, Namespace, Tool, ToolSearch

from .types import (
    AnswerBlock,
    CodeExecutionBlock,
    CodeExecutionResult,
    CompactionBlock,
    DocumentText,
    FetchedDocument,
    McpResultBlock,
    McpUseBlock,
    ServerToolUseBlock,
    TextBlock,
    ToolReference,
    ToolReferences,
    ToolSearchBlock,
    WebFetchBlock,
    WebFetchError,
    WebFetchResult,
    WebSearchError,
    WebSearchResult,
    WebSearchResultBlock,
)

#: Anthropic's name of the tool search that takes words.
TOOL_SEARCH = "tool_search_tool_bm25"


def server_blocks(item: it.Item, search_name: str = TOOL_SEARCH) -> tuple[AnswerBlock, ...]:
    """Return the blocks for a call that this server has run, or for its result. Returns an empty
    tuple for other items. ``search_name``: the name under which the request declares the tool
    search."""
    if isinstance(item, it.ToolSearchCall):
        return (_tool_search(item, search_name),)
    read = _BLOCKS.get(type(item))
    return () if read is None else read(item)


def search_name(tools: Iterable[Tool]) -> str:
    """Return the name of the tool search in ``tools``. Returns the usual name if no client of the
    Messages API has declared one."""
    names = (tool.name for tool in tools if isinstance(tool, ToolSearch))
    return next((name for name in names if isinstance(name, str)), TOOL_SEARCH)


def call_input(arguments: str) -> JsonObject:
    """Return the arguments of a call as an object. The text may not be a JSON object, because the
    model wrote invalid JSON or because the text was truncated. In this case, return
    ``{"INVALID_JSON": text}``, as Anthropic's documentation recommends."""
    if not arguments:
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


def _id(prefix: str, id: str) -> str:
    return prefix + id.partition("_")[2]


def is_search(item: it.Item) -> bool:
    """Return whether the item is a web search. A web search call may also open a page or find text
    in a page."""
    return _action(item) == "search"


def is_fetch(item: it.Item) -> bool:
    """Return whether the item is a call that opened a web page."""
    return _action(item) == "open_page"


def _action(item: it.Item) -> str | None:
    """Return the kind of action of a web search call. Returns None for other items."""
    if not isinstance(item, it.WebSearchCall) or item.action is UNSET:
        return None
    kind: str = item.action["type"]
    return kind


def _web_search(item: it.WebSearchCall) -> tuple[AnswerBlock, ...]:
    if item.action is UNSET:
        return ()
    if not is_search(item):
        return _web_fetch(item, item.action)
    id = _id("srvtoolu_", item.id)
    found = () if item.results is UNSET else item.results
    results = tuple(
        WebSearchResult(
            url=str(result.get("url", "")),
            title=str(result.get("title", "")),
            encrypted_content=base64.b64encode(str(result.get("text", "")).encode()).decode(),
        )
        for result in found
    )
    content = WebSearchError() if item.status == "failed" else results
    return (
        ServerToolUseBlock(id=id, name="web_search", input={"query": item.action.get("query", "")}),
        WebSearchResultBlock(tool_use_id=id, content=content),
    )


def _web_fetch(item: it.WebSearchCall, action: JsonObject) -> tuple[AnswerBlock, ...]:
    """Return the blocks of a call that opened a page. Other calls have no blocks."""
    failed = item.status == "failed"
    if not is_fetch(item) or not (item.results or failed):
        return ()
    id = _id("srvtoolu_", item.id)
    content: WebFetchResult | WebFetchError = WebFetchError()
    if item.results and not failed:
        (page,) = item.results
        source = DocumentText(data=str(page.get("text", "")))
        document = FetchedDocument(source=source, title=page.get("title"))
        content = WebFetchResult(url=str(page.get("url", "")), content=document)
    return (
        ServerToolUseBlock(id=id, name="web_fetch", input={"url": action.get("url") or ""}),
        WebFetchBlock(tool_use_id=id, content=content),
    )


def text_of_result(content: str) -> str:
    """Return the text of a search result from its ``encrypted_content``. Returns "" if this value
    is not a text in base64. Such a value usually comes from another server."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return ""


def _code_execution(item: it.CodeInterpreterCall) -> tuple[AnswerBlock, ...]:
    id = _id("srvtoolu_", item.id)
    logs = "".join(str(output.get("logs", "")) for output in item.outputs or ())
    result = CodeExecutionResult(stdout=logs, return_code=int(item.status != "completed"))
    return (
        ServerToolUseBlock(id=id, name="code_execution", input={"code": item.code or ""}),
        CodeExecutionBlock(tool_use_id=id, content=result),
    )


def _mcp(item: it.McpCall) -> tuple[AnswerBlock, ...]:
    id = _id("mcptoolu_", item.id)
    failed = item.error is not None
    text = item.output or (_error_text(item.error) if failed else "")
    return (
        McpUseBlock(
            id=id,
            name=item.name,
            server_name=item.server_label,
            input=call_input(item.arguments),
        ),
        McpResultBlock(tool_use_id=id, is_error=failed, content=(TextBlock(text=text),)),
    )


def _error_text(error: Any) -> str:
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _tool_search(item: it.ToolSearchCall, name: str) -> ServerToolUseBlock:
    arguments = item.arguments if isinstance(item.arguments, dict) else {}
    id = _id("srvtoolu_", item.call_id or item.id)
    return ServerToolUseBlock(id=id, name=name, input=arguments)


def _found_tools(item: it.ToolSearchOutput) -> tuple[AnswerBlock, ...]:
    groups = [tool.tools if isinstance(tool, Namespace) else (tool,) for tool in item.tools]
    found = itertools.chain.from_iterable(groups)
    names = [tool.name for tool in found if isinstance(tool, Function | Custom)]
    references = tuple(ToolReference(tool_name=name) for name in names)
    id = _id("srvtoolu_", item.call_id or item.id)
    return (ToolSearchBlock(tool_use_id=id, content=ToolReferences(tool_references=references)),)


def _compaction(item: it.Compaction) -> tuple[AnswerBlock, ...]:
    summary = None if item.summary is UNSET else item.summary or None
    return (CompactionBlock(content=summary, encrypted_content=item.encrypted_content),)


_BLOCKS: Mapping[type[it.Item], Callable[[Any], tuple[AnswerBlock, ...]]] = {
    it.WebSearchCall: _web_search,
    it.CodeInterpreterCall: _code_execution,
    it.McpCall: _mcp,
    it.ToolSearchOutput: _found_tools,
    it.Compaction: _compaction,
}
