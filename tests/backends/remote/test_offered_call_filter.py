"""Calls of an upstream that the request did not allow."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.backends.remote.offered_call_filter import OfferedCallFilter
from antiphon.dialects.tools import collect_tools
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.wire import items as it
from antiphon.wire.response import Usage
from antiphon.wire.tools import Function, Mcp, Namespace, Tool, WebSearchPreview

LOOK = Function(name="look")
DELETE = Function(name="delete")
SHELL = it.LocalShellCall(call_id="c", action={"type": "exec", "command": ["rm", "-r", "/"]})
APPROVAL = it.McpApprovalRequest(server_label="x", name="delete", arguments="{}")
SEARCH = it.WebSearchCall(status="completed")
FINISH = Finish("stop", Usage())


def call_deltas(name: str, arguments: str = "{}", namespace: str | None = None) -> list[Delta]:
    call = it.FunctionCall(call_id="c", name=name, arguments="", namespace=namespace or "")
    return [Open(call), Text(arguments), Close()]


def filtered(deltas: Sequence[Delta], *tools: Tool, **options: object) -> tuple[Delta, ...]:
    wish = Options(tools=tools, **options)  # type: ignore[arg-type]
    calls = OfferedCallFilter(wish, collect_tools(wish, ()))
    return tuple(each for delta in deltas for each in calls.filter([delta]))


def test_offered_call_passes() -> None:
    deltas = [*call_deltas("look"), FINISH]
    assert filtered(deltas, LOOK) == tuple(deltas)
    deltas = call_deltas("look", namespace="eyes")
    assert filtered(deltas, Namespace(name="eyes", description="", tools=(LOOK,))) == tuple(deltas)


@pytest.mark.requirement("API-OFFERED-CALLS")
@pytest.mark.parametrize("choice", [ToolChoice("none"), ToolChoice()])
def test_call_that_was_not_offered_becomes_text(choice: ToolChoice) -> None:
    deltas = [*call_deltas("delete", '{"all": true}'), *call_deltas("rm"), FINISH]
    remaining = filtered(deltas, *(() if choice.mode == "auto" else (DELETE,)), tool_choice=choice)
    assert not any(isinstance(d, Open) and isinstance(d.item, it.FunctionCall) for d in remaining)
    text = "".join(delta.text for delta in remaining if isinstance(delta, Text))
    assert text == 'delete({"all": true})rm({})' and remaining[-1] == FINISH


@pytest.mark.requirement("API-OFFERED-CALLS")
@pytest.mark.parametrize(
    ("item", "tools", "mode", "passes"),
    [
        (SHELL, (LOOK,), "auto", False),
        (APPROVAL, (), "auto", False),
        (APPROVAL, (Mcp(server_label="x"),), "auto", True),
        (SEARCH, (WebSearchPreview(),), "auto", True),
        (SEARCH, (WebSearchPreview(),), "none", False),
    ],
)
def test_items_of_hosted_tools_need_their_tool(
    item: it.Item, tools: tuple[Tool, ...], mode: str, passes: bool
) -> None:
    message = Open(it.Message(role="assistant", content=()))
    deltas = [Open(item), Text("x"), Close(), message, Text("Hi"), Close(), FINISH]
    remaining = filtered(deltas, *tools, tool_choice=ToolChoice(mode))  # type: ignore[arg-type]
    assert remaining == (tuple(deltas) if passes else tuple(deltas[3:]))


def test_caller_that_checks_calls_sees_them() -> None:
    deltas = call_deltas("rm")
    assert filtered(deltas, LOOK, checks_calls=True) == tuple(deltas)
