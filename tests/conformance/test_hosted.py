"""Server-side tools in general: opened before the model call, called, and shown in the output."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, ToolError
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.request.mcp_approvals import call_digest
from antiphon.store.base import Store
from antiphon.store.journal import JournalEntry
from antiphon.stream.deltas import Close, Open, Text
from antiphon.tools.base import (
    CallContext,
    PendingCall,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.wire import items as it
from antiphon.wire.tools import Function, Mcp
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL, call, message_deltas, reasoning_deltas
from tests.conformance.server import Ask, engine, local
from tests.conformance.test_tool_search import rendered_prompts, tool_call

MCP = {"type": "mcp", "server_label": "dice", "server_url": "http://localhost/mcp"}


class Dice(ToolProvider[Mcp]):
    """A provider of ``mcp`` with one function, ``roll``."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.open_now = 0
        self.rolled: list[str] = []

    def check(self, tool: Mcp, path: str) -> None:
        if tool.server_label == "none":
            raise InvalidRequest("No such server.", param=f"{path}.server_label")

    def leading_item(self, tool: Mcp, opening: ResponseContext) -> it.Item | None:
        listed = any(isinstance(item, it.McpListTools) for item in opening.items)
        return None if listed else it.McpListTools(server_label=tool.server_label, tools=())

    @asynccontextmanager
    async def open(self, tool: Mcp, opening: ResponseContext) -> AsyncIterator[Toolset]:
        if self.fails:
            raise ToolError("The server does not answer.")
        self.open_now += 1
        try:
            shell = it.McpCall(server_label=tool.server_label, name="roll", arguments="")
            offer = ToolFunction(
                tool=Function(name="roll", description="Rolls dice"),
                initial_item=shell,
                handler=self.roll,
                streams_text=True,
                namespace=tool.server_label,
            )
            answers = [i for i in opening.items if isinstance(i, it.McpApprovalResponse)]
            first = tuple(
                PendingCall(function=offer, arguments="{}")
                for each in answers
                if each.approve and each.approval_request_id not in opening.spent_approvals
            )
            listed = ({"name": "roll", "input_schema": {"type": "object"}},)
            yield Toolset(functions=(offer,), pending_calls=first, fields={"tools": listed})
        finally:
            self.open_now -= 1

    async def roll(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        self.rolled.append(arguments)
        yield ToolProgress("completed")
        yield ToolResult(text="six", fields={"output": "six"})


@pytest.mark.requirement("API-TOOL-CHOICE-HOSTED-ONCE")
async def test_forced_hosted_tool_is_called_once(serve: Serve, ask: Ask) -> None:
    """The turn ends with the call, and the model is free in the next one."""
    dice = Dice()
    rolls = "\n".join(tool_call("dice__roll", {"n": n}) for n in range(100))
    both = "\n".join(tool_call("dice__roll", {"n": n}) for n in (7, 8))
    scripted_engine = engine([rolls, both, "Done."])
    server = serve(local(scripted_engine), providers={"mcp": dice})
    choice = {"type": "mcp", "server_label": "dice"}
    answer = await ask(server, tools=[MCP], tool_choice=choice)
    types = [item["type"] for item in answer.output]
    assert types == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]
    assert dice.rolled == ['{"n": 0}', '{"n": 7}', '{"n": 8}']
    assert answer.terminal_response["usage"]["output_tokens"] < len(rolls) / 2


@pytest.mark.requirement("API-MAX-TOOL-CALLS")
async def test_calls_beyond_max_tool_calls_are_not_generated(serve: Serve, ask: Ask) -> None:
    dice = Dice()
    rolls = "\n".join(tool_call("dice__roll", {"n": n}) for n in range(100))
    server = serve(local(engine([rolls, "Two."])), providers={"mcp": dice})
    answer = await ask(server, tools=[MCP], max_tool_calls=2)
    assert dice.rolled == ['{"n": 0}', '{"n": 1}'] and answer.text == "Two."
    response = answer.terminal_response
    assert (response["status"], response["max_tool_calls"]) == ("completed", 2)
    assert response["usage"]["output_tokens"] < len(rolls) / 2


@pytest.mark.requirement("API-MAX-TOOL-CALLS")
async def test_after_max_tool_calls_only_functions_of_the_client_may_be_called(
    serve: Serve, ask: Ask
) -> None:
    roll = it.FunctionCall(call_id="c", name="roll", namespace="dice", arguments="")

    def answer_to(conversation: Conversation, options: Options) -> Any:
        is_rolled = any(isinstance(item, it.FunctionCallOutput) for item in conversation.items)
        return "Six." if is_rolled else [Open(roll), Text("{}"), Close()]

    server = serve(ScriptedBackend(answer_to), providers={"mcp": Dice()})
    answer = await ask(server, tools=[MCP, TOOL], max_tool_calls=1)
    assert answer.text == "Six."
    choices = [options.tool_choice for _, options in server.backend.requests]  # type: ignore[attr-defined]
    assert [choice.allows("roll", "dice") for choice in choices[-2:]] == [True, False]
    assert all(choice.allows(TOOL["name"], None) for choice in choices)


@pytest.mark.requirement("D-16")
async def test_hosted_tool_is_listed_and_called(serve: Serve, ask: Ask) -> None:
    dice = Dice()
    server = serve(
        local(engine([tool_call("dice__roll", {"n": 1}), "It is six."])), providers={"mcp": dice}
    )
    answer = await ask(server, tools=[MCP])
    listed, rolled, message = answer.output
    assert listed["type"] == "mcp_list_tools" and listed["tools"][0]["name"] == "roll"
    assert (rolled["type"], rolled["status"]) == ("mcp_call", "completed")
    assert rolled["output"] == "six" and rolled["arguments"] == '{"n": 1}'
    assert message["content"][0]["text"] == "It is six."
    assert dice.open_now == 0 and "x-antiphon-ignored-tools" not in answer.headers
    first, second = rendered_prompts(server)
    assert '"dice__roll"' in first and second.startswith(first) and "six" in second
    if answer.events:
        types = [e["type"].removeprefix("response.") for e in answer.events]
        steps = [t for t in types if t.startswith(("mcp", "output_item"))]
        deltas = steps.count("mcp_call_arguments.delta")
        assert steps == [
            "output_item.added",
            "mcp_list_tools.in_progress",
            "mcp_list_tools.completed",
            "output_item.done",
            "output_item.added",
            "mcp_call.in_progress",
            *["mcp_call_arguments.delta"] * deltas,
            "mcp_call_arguments.done",
            "mcp_call.completed",
            "output_item.done",
            "output_item.added",
            "output_item.done",
        ]


async def test_later_response_sees_the_tool_result(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    dice = Dice()
    replies = [tool_call("dice__roll", {}), "It is six.", "As I said, six."]
    server = serve(local(engine(replies)), on=store, providers={"mcp": dice})
    first = await ask_foreground(server, tools=[MCP])
    second = await ask_foreground(
        server, tools=[MCP], previous_response_id=first.terminal_response["id"], input="And again?"
    )
    assert [item["type"] for item in second.output] == ["message"]  # listed before
    last = rendered_prompts(server)[-1]
    assert "six" in last and last.index("It is six.") < last.index("And again?")


async def test_tool_that_fails_to_open_is_reported(serve: Serve, ask: Ask) -> None:
    server = serve(local(engine(["Sorry."])), providers={"mcp": Dice(fails=True)})
    answer = await ask(server, tools=[MCP])
    listed, _ = answer.output
    assert listed["error"] == "The server does not answer." and answer.text == "Sorry."
    assert answer.terminal_response["status"] == "completed"


async def test_approved_calls_run_before_the_model(serve: Serve, ask: Ask) -> None:
    dice = Dice()
    server = serve(local(engine(["You have a six."])), providers={"mcp": dice})
    body = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "dice",
        "name": "roll",
        "arguments": "{}",
    }
    allowed = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    listed = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "dice", "tools": []}
    shown = call_digest(MCP["server_url"], "roll", "{}")
    entry = JournalEntry(key="mcpr_1", response_id="resp_0", intent=shown, is_approval=True)
    await server.store.journal.begin("default", [entry], 1)
    answer = await ask(
        server, tools=[MCP], input=[{"role": "user", "content": "Roll!"}, listed, body, allowed]
    )
    assert [item["type"] for item in answer.output] == ["mcp_call", "message"]
    assert answer.output[0]["output"] == "six" and dice.rolled == ["{}"]
    assert "six" in rendered_prompts(server)[0]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "mcp", "server_label": "dice"},
        {"type": "mcp", "server_label": "dice", "name": "roll"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "mcp", "server_label": "dice"}],
        },
    ],
)
async def test_tool_choice_forces_a_hosted_tool(
    serve: Serve, ask_foreground: Ask, choice: Any
) -> None:
    scripted_engine = engine([tool_call("dice__roll", {}), "Six."])
    server = serve(local(scripted_engine), providers={"mcp": Dice()})
    answer = await ask_foreground(server, tools=[MCP, TOOL], tool_choice=choice)
    assert answer.text == "Six."
    first, second = (sampling.constraint for _, sampling in scripted_engine.requests)
    assert first is not None and first.needed and "dice__roll" in first.lark
    assert "get_weather" not in first.lark
    assert second is not None
    assert ("get_weather" in second.lark) == (choice["type"] == "mcp")


async def test_provider_rejects_fields_by_name(serve: Serve, ask: Ask) -> None:
    server = serve(providers={"mcp": Dice()})
    rejection = (await ask(server, tools=[TOOL, {**MCP, "server_label": "none"}])).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[1].server_label")


async def test_hosted_and_client_tools_can_be_mixed(serve: Serve, ask: Ask) -> None:
    script = [
        tool_call("dice__roll", {}) + tool_call("get_weather", {"city": "Oslo"}),
        "Six, and rain.",
    ]
    server = serve(local(engine(script)), providers={"mcp": Dice()})
    first = await ask(server, tools=[MCP, TOOL])
    assert [i["type"] for i in first.output] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert first.terminal_response["status"] == "completed" and first.output[1]["output"] == "six"
    output = {
        "type": "function_call_output",
        "call_id": first.output[2]["call_id"],
        "output": "rain",
    }
    if first.terminal_response["store"]:
        second = await ask(
            server,
            tools=[MCP, TOOL],
            previous_response_id=first.terminal_response["id"],
            input=[output],
        )
        assert second.text == "Six, and rain."


async def test_hosted_tools_work_without_token_ids(serve: Serve, ask: Ask) -> None:
    scripts = [
        [*reasoning_deltas("Hm."), *call("{}", name="roll")],
        message_deltas("Six."),
    ]
    dice = Dice()
    server = serve(with_namespace(scripts), providers={"mcp": dice})
    answer = await ask(server, tools=[MCP])
    kinds = [item["type"] for item in answer.output]
    assert kinds == ["mcp_list_tools", "reasoning", "mcp_call", "message"]


def with_namespace(scripts: Any, namespace: str = "dice") -> Any:
    from msgspec.structs import replace

    from antiphon.backends.scripted_backend import ScriptedBackend
    from antiphon.stream.deltas import Open

    def reply(conversation: Any, options: Any) -> Any:
        if not options.tools:
            return "not asked yet"
        done = any(isinstance(item, it.FunctionCallOutput) for item in conversation.items)
        script = scripts[1 if done else 0]
        return [
            Open(replace(delta.item, namespace=namespace))
            if isinstance(delta, Open) and isinstance(delta.item, it.FunctionCall)
            else delta
            for delta in script
        ]

    return ScriptedBackend(reply)
