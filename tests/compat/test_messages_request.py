"""Requests of the Messages API, translated without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from antiphon.compat.messages.request import parse_messages_request
from antiphon.errors import InvalidRequest
from antiphon.wire.items import FunctionCall
from antiphon.wire.tools import Mcp


def test_older_form_of_mcp_servers_allows_the_tools_that_it_lists() -> None:
    def allowed(**configuration: Any) -> list[object]:
        body = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "hi"}],
            "mcp_servers": [
                {
                    "type": "url",
                    "name": "desk",
                    "url": "https://desk.example/mcp",
                    "tool_configuration": configuration,
                }
            ],
        }
        request = parse_messages_request(json.dumps(body).encode()).request
        return [tool.allowed_tools for tool in request.tools or () if isinstance(tool, Mcp)]

    assert allowed(allowed_tools=["read"]) == [("read",)]
    assert allowed(allowed_tools=[]) == [()]
    assert allowed(enabled=False, allowed_tools=["read"]) == []


#: A request with all kinds of blocks, which refer to each other.
RICH: dict[str, Any] = {
    "model": "m",
    "max_tokens": 10,
    "tools": [
        {"name": "f", "input_schema": {}},
        {"name": "g", "input_schema": {}, "defer_loading": True},
        {"type": "code_execution_20250825", "name": "code_execution"},
    ],
    "context_management": {
        "edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}},
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "tool_uses", "value": 0},
                "keep": {"type": "tool_uses", "value": 0},
                "exclude_tools": ["g"],
            },
            {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 60_000}},
        ]
    },
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "url": "https://a.example/i.png"}},
                {
                    "type": "document",
                    "source": {"type": "content", "content": [{"type": "text", "text": "x"}]},
                    "citations": {"enabled": True},
                },
                {
                    "type": "search_result",
                    "source": "https://a.example",
                    "title": "t",
                    "content": [{"type": "text", "text": "r"}],
                },
                {"type": "container_upload", "file_id": "file_1"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {
                    "type": "text",
                    "text": "b",
                    "citations": [
                        {
                            "type": "content_block_location",
                            "document_index": 0,
                            "start_block_index": 0,
                            "end_block_index": 1,
                        }
                    ],
                },
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": None}},
                {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {"url": "u"}},
                {
                    "type": "web_fetch_tool_result",
                    "tool_use_id": "s",
                    "content": {"url": "u", "content": {"source": {"type": "text", "data": "d"}}},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [
                        {"type": "text", "text": "r"},
                        {"type": "tool_reference", "tool_name": "g"},
                        {
                            "type": "browser_state",
                            "tabs": [{"tab_id": "1"}],
                            "state_changes": [{"type": "tab_opened"}],
                        },
                    ],
                }
            ],
        },
        {
            "role": "system",
            "content": [
                {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
            ],
        },
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


@pytest.mark.parametrize("hostile", [None, 5, "zz", [], ["a"], [{}], {}, {"type": "zz"}], ids=str)
def test_a_hostile_value_at_any_place_is_refused_or_accepted(hostile: object) -> None:
    text = json.dumps(RICH)
    parse_messages_request(text.encode())
    for *path, last in places(RICH):
        body = target = json.loads(text)
        for key in path:
            target = target[key]
        target[last] = hostile
        with suppress(InvalidRequest):
            parse_messages_request(json.dumps(body).encode())


def test_nulls_in_the_input_of_a_call_are_kept() -> None:
    items = parse_messages_request(json.dumps(RICH).encode()).request.input or ()
    assert [item.arguments for item in items if isinstance(item, FunctionCall)] == ['{"a":null}']
