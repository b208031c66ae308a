"""How often the prompt of a turn is rendered (``Backend.prepare``)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.inference.conversation import ToolChoice
from antiphon.runs.service import Service
from antiphon.stream.deltas import Delta
from antiphon.tools.base import AnyToolProvider
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionKey
from antiphon.tools.shell import ShellProvider
from antiphon.tools.web_search.browser import SearchOptions
from antiphon.tools.web_search.page import SearchResult, WebPage
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire import items as it
from antiphon.wire.parsing.requests import parse_input_tokens_request
from antiphon.wire.response import Response
from tests.conformance.fake_containers import containers
from tests.conformance.scripts import call, custom_call_deltas, message_deltas
from tests.runs.scripted_service import create, events_of, make_service

CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
WEB = {"type": "web_search"}
FILES = {"type": "file_search", "vector_store_ids": ["vs_1"]}
MCP = {"type": "mcp", "server_label": "home"}


class _Pages:
    """A web of one page."""

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        return (SearchResult(url="https://a.example/", title="A", text="a"),)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        return WebPage.from_text(url, "A", "a")

    async def close(self) -> None: ...


class _VectorStores:
    """Vector stores without files."""

    async def check_searchable(self, *arguments: object) -> None: ...

    async def search(self, *arguments: object) -> tuple[()]:
        return ()


class _McpPool:
    """An MCP server with one tool, ``echo``."""

    async def call(self, key: SessionKey, question: Any) -> Any:
        return await question(self)

    async def list_tools(self, cursor: str | None = None, meta: Any = None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="echo", input_schema={"type": "object"})])

    async def call_tool(self, name: str, arguments: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="six")])


def _providers() -> dict[str, AnyToolProvider]:
    boxes, pool, pages, stores = containers(), _McpPool(), _Pages(), _VectorStores()
    return {
        "code_interpreter": CodeInterpreterProvider(boxes),
        "shell": ShellProvider(boxes),
        "web_search": WebSearchProvider(pages, is_external=False),
        "file_search": FileSearchProvider(stores),  # type: ignore[arg-type]
        "mcp": McpProvider({"home": McpEndpoint(url="http://home.example/mcp")}, pool),  # type: ignore[arg-type]
    }


def _call_first(*called: Delta) -> ScriptedBackend:
    """A model that calls a tool until it sees an output, then answers."""

    def script(conversation: Any, options: Any) -> Any:
        outputs = (it.FunctionCallOutput, it.CustomToolCallOutput, it.ShellCallOutput)
        has_output = any(isinstance(item, outputs) for item in conversation.items)
        return message_deltas("Done.") if has_output or not called else list(called)

    return ScriptedBackend(script)


async def _respond(service: Service, **fields: Any) -> Response:
    run = await create(service, **fields)
    await events_of(run)
    return run.response


@pytest.mark.parametrize(
    "tool",
    [None, CODE, SHELL, WEB, FILES],
    ids=["no tool", "code_interpreter", "shell", "web_search", "file_search"],
)
async def test_one_turn_renders_its_prompt_once(tool: dict[str, Any] | None) -> None:
    backend = _call_first()
    service = make_service(backend, providers=_providers())
    response = await _respond(service, tools=[tool] if tool else [])
    assert response.status == "completed"
    assert len(backend.requests) == 1
    assert bool(backend.requests[0][1].tools) == (tool is not None)


@pytest.mark.parametrize(
    ("tool", "deltas"),
    [
        (CODE, custom_call_deltas("say hi", name="python")),
        (SHELL, call('{"commands": ["say hi"]}', name="shell")),
        (FILES, call('{"queries": ["fjords"]}', name="file_search")),
    ],
    ids=["code_interpreter", "shell", "file_search"],
)
async def test_two_turns_render_two_prompts(tool: dict[str, Any], deltas: list[Delta]) -> None:
    backend = _call_first(*deltas)
    response = await _respond(make_service(backend, providers=_providers()), tools=[tool])
    assert isinstance(response.output[-1], it.Message)
    assert len(backend.requests) == 2
    first, second = (options.tools for _, options in backend.requests)
    assert first == second


async def test_mcp_renders_a_second_time_once_its_tools_are_listed() -> None:
    backend = _call_first()
    service = make_service(backend, providers=_providers())
    first = await _respond(service, tools=[MCP])
    assert len(backend.requests) == 2
    assert not backend.requests[0][1].tools and backend.requests[1][1].tools
    await _respond(service, tools=[MCP], previous_response_id=first.id)
    assert len(backend.requests) == 3  # the list is in the conversation


async def test_a_forced_static_tool_is_chosen_in_the_only_rendering() -> None:
    backend = _call_first()
    choice = {"type": "file_search"}
    await _respond(make_service(backend, providers=_providers()), tools=[FILES], tool_choice=choice)
    ((_, options),) = backend.requests
    assert options.tool_choice == ToolChoice("one", frozenset({("file_search", None)}))


async def test_counting_input_tokens_renders_the_declared_functions() -> None:
    backend = _call_first()
    body = {"model": "scripted", "input": "hi", "tools": [WEB]}
    request = parse_input_tokens_request(json.dumps(body).encode())
    await make_service(backend, providers=_providers()).count("t", request)
    ((_, options),) = backend.requests
    assert [tool.name for tool in options.tools] == ["browser"] * 3  # type: ignore[union-attr]


async def test_turns_after_a_compaction_see_the_compacted_conversation() -> None:
    def script(conversation: Any, options: Any) -> Any:
        last = str(conversation.items[-1])
        if "now compacted" in last:
            return "The summary."
        is_output = any(isinstance(i, it.CustomToolCallOutput) for i in conversation.items)
        return "Done." if is_output else custom_call_deltas("say hi", name="python")

    backend = ScriptedBackend(script, context_size=4096)
    response = await _respond(
        make_service(backend, providers=_providers()),
        input=[
            {"role": "user", "content": "word " * 600},
            {"role": "assistant", "content": "ok " * 600},
            {"role": "user", "content": "go"},
        ],
        tools=[CODE],
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
    )
    types = [type(item) for item in response.output]
    assert types == [it.Compaction, it.CodeInterpreterCall, it.Message]
    first, second = (conversation.items for conversation, _ in list(backend.requests)[-2:])
    assert "The summary." in str(first) and "ok ok" not in str(first)
    assert second[: len(first)] == first
    assert [type(item) for item in second[len(first) :]] == [
        it.CustomToolCall,
        it.CustomToolCallOutput,
    ]
