"""Built-in tools that an MCP server implements, with the tools of gpt-oss's servers."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.errors import ConnectorError, InvalidRequest
from antiphon.tools.base import CallContext, ResponseContext, ToolFunction, ToolProgress, ToolResult
from antiphon.tools.mcp.calls import McpCaller
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.implementations import McpImplementation, code_interpreter, web_search
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.wire import tools as tl
from antiphon.wire.items import CodeInterpreterCall, WebSearchCall

from .process import TOYS

_PROCESS = McpEndpoint(command=sys.executable, args=(str(TOYS), "stdio"))
_CODE = tl.CodeInterpreter(container={"type": "auto"})


@pytest.fixture
async def caller() -> AsyncIterator[McpCaller]:
    caller = McpCaller(SessionPool())
    yield caller
    await caller.close()


def _response(*include: str) -> ResponseContext:
    return ResponseContext(tenant="t", response_id="resp_1", items=(), include=frozenset(include))


async def _run(function: ToolFunction, written: str) -> tuple[list[str], ToolResult]:
    """Return the names of the progress events of a call, and its result."""
    assert function.handler is not None
    context = CallContext(
        tenant="t", response_id="resp_1", call_id="call_1", max_result_bytes=10_000
    )
    async with aclosing(function.handler(written, context)) as steps:
        events = [step async for step in steps]
    result = events.pop()
    assert isinstance(result, ToolResult)
    return [step.name for step in events if isinstance(step, ToolProgress)], result


@pytest.mark.requirement("MCP-IMPLEMENTS")
async def test_web_search_calls_the_server(caller: McpCaller) -> None:
    provider = McpImplementation(web_search, "browser", _PROCESS, caller)
    async with provider.open(tl.WebSearch(), _response()) as toolset:
        functions = {function.tool.name: function for function in toolset.functions}
        assert {"search", "open", "find"} <= functions.keys() and "add" not in functions
        search = functions["search"]
        assert isinstance(search.initial_item, WebSearchCall) and search.namespace == "browser"
        steps, result = await _run(search, '{"query": "rain"}')
        assert steps == ["searching"] and result.text == "results of rain"
        assert result.fields["action"] == {"type": "search", "query": "rain", "queries": ["rain"]}
        _, result = await _run(functions["open"], '{"id": "https://a.example"}')
        assert result.fields["action"] == {"type": "open_page", "url": "https://a.example"}
        _, result = await _run(functions["find"], '{"pattern": "wet"}')
        assert result.fields["action"]["pattern"] == "wet" and result.failed


@pytest.mark.requirement("MCP-IMPLEMENTS")
async def test_code_runs_at_the_server(caller: McpCaller) -> None:
    provider = McpImplementation(code_interpreter, "python", _PROCESS, caller)
    async with provider.open(_CODE, _response("code_interpreter_call.outputs")) as toolset:
        (function,) = toolset.functions
        assert isinstance(function.tool, tl.Custom) and function.tool.name == "python"
        assert isinstance(function.initial_item, CodeInterpreterCall)
        steps, result = await _run(function, "x = 1")
        assert steps == ["interpreting"] and result.text == "ran x = 1"
        assert result.fields["outputs"] == ({"type": "logs", "logs": "ran x = 1"},)
    async with provider.open(_CODE, _response()) as toolset:
        _, result = await _run(toolset.functions[0], "x")
        assert result.fields["outputs"] is None


@pytest.mark.parametrize(
    ("kind", "tool", "param"),
    [
        (web_search, tl.WebSearch(filters={"allowed_domains": ["a.b"]}), "tools[0].filters"),
        (code_interpreter, tl.CodeInterpreter(container="cntr_1"), "tools[0].container"),
        (
            code_interpreter,
            tl.CodeInterpreter(container={"type": "auto", "file_ids": ["file_1"]}),
            "tools[0].container.file_ids",
        ),
    ],
)
def test_fields_that_the_server_would_ignore_are_refused(
    caller: McpCaller, kind: Any, tool: Any, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        McpImplementation(kind, "x", _PROCESS, caller).check(tool, "tools[0]")
    assert refusal.value.param == param


async def test_server_that_cannot_be_listed_ends_the_response(caller: McpCaller) -> None:
    absent = McpEndpoint(url="http://127.0.0.1:9/mcp")
    provider = McpImplementation(web_search, "browser", absent, caller)
    with pytest.raises(ConnectorError, match="'browser'"):
        async with provider.open(tl.WebSearch(), _response()):
            pass
