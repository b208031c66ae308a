"""The check of tool providers finds violations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.errors import GrammarError, RequestError
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire.items import McpCall, ShellCallOutput, WebSearchCall
from antiphon.wire.tools import Function, WebSearch

TRIAL = ToolCheckCase(
    tool=WebSearch(),
    successful_call=("look", "{}"),
    failing_call=("look", "fail"),
    long_call=("look", "long"),
)


class Tool(ToolProvider[Any]):
    """A correct provider, except for what a test changes."""

    def __init__(self, **wrong: Any) -> None:
        self.wrong = wrong
        self.left: list[asyncio.Task[bool]] = []

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        if self.wrong.get("leaks"):
            self.left.append(asyncio.create_task(asyncio.Event().wait()))
        offer: dict[str, Any] = {
            "tool": Function(name="look", parameters=self.wrong.get("schema")),
            "initial_item": self.wrong.get(
                "initial_item", WebSearchCall(action={"type": "search"})
            ),
            "handler": self.run,
            "failed_status": self.wrong.get("failed_status", "failed"),
        }
        yield Toolset(functions=(ToolFunction(**offer),))

    async def run(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        for step in self.wrong.get("steps", ("searching",)):
            yield ToolProgress(step)
        if arguments == "fail":
            yield ToolResult(text="no", failed=True)
        elif arguments == "long" and self.wrong.get("long"):
            output = ({"stdout": "x" * 100_000, "stderr": "", "outcome": {"type": "timeout"}},)
            yield ToolResult(items=(ShellCallOutput(call_id=context.call_id, output=output),))
        else:
            yield ToolResult(
                text=self.wrong.get("text", "seen"), fields=self.wrong.get("fields", {})
            )


async def test_correct_provider_passes() -> None:
    await check_tool(Tool(), TRIAL)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"steps": ("searching", "searching")}, "not allowed"),
        ({"steps": ("found",)}, "not a progress step"),
        ({"failed_status": "sad"}, "cannot send the items|sad"),
        ({"fields": {"action": 7}}, "action"),
        ({"fields": {"colour": "red"}}, "has no"),
        ({"text": ""}, "neither text nor items"),
        ({"text": "\ud800"}, "surrogates"),
        ({"long": True}, "are allowed"),
        ({"leaks": True}, "running task"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "colour"}}}}, "colour"),
        ({"schema": {"type": "string"}}, "are not an object"),
    ],
)
async def test_check_finds_violations_of_the_contract(wrong: Any, why: str) -> None:
    tool = Tool(**wrong)
    with pytest.raises((AssertionError, GrammarError, ValueError, RequestError), match=why):
        await check_tool(tool, TRIAL)
    for task in tool.left:
        task.cancel()


async def test_completion_is_reported_by_the_result() -> None:
    item = McpCall(server_label="", name="", arguments="")
    await check_tool(Tool(initial_item=item, steps=("completed",), fields={"output": "x"}), TRIAL)
