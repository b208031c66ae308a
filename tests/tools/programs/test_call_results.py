"""Outcomes of a program's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.sandbox.javascript import CallOutcome
from antiphon.tools.programs.call_results import call_result, return_type
from antiphon.wire import items as it
from antiphon.wire import tools as tl

TEXT = tl.Function(name="f")
VALUE = tl.Function(name="f", output_schema={"type": "object"})
CALL = it.FunctionCall(call_id="c", name="f", arguments="{}")
PATCH = it.ApplyPatchCall(call_id="c", operation={"type": "delete_file", "path": "a"})
SHELL = it.ShellCall(call_id="c", action={"commands": []})
LOGS = {"type": "logs", "logs": "four\n"}


def output(text: Any) -> it.FunctionCallOutput:
    return it.FunctionCallOutput(call_id="c", output=text)


def mcp(**fields: Any) -> it.McpCall:
    return it.McpCall(server_label="s", name="f", arguments="{}", **fields)


def python(**fields: Any) -> it.CodeInterpreterCall:
    return it.CodeInterpreterCall(container_id="cntr", **fields)


@pytest.mark.parametrize(
    ("call", "tool", "value"),
    [
        ((CALL, output('{"a": 1}')), TEXT, '{"a": 1}'),
        ((CALL, output('{"a": 1}')), VALUE, {"a": 1}),
        ((CALL, output("no JSON")), VALUE, "no JSON"),
        ((CALL, output("NaN")), VALUE, "NaN"),
        ((CALL, output((it.InputText(text="x"),))), TEXT, [{"type": "input_text", "text": "x"}]),
        ((mcp(output="seen"),), TEXT, "seen"),
        ((mcp(),), TEXT, ""),
        ((python(outputs=(LOGS, {"type": "image", "url": "data:"})),), TEXT, "four\n"),
        (
            (SHELL, it.ShellCallOutput(call_id="c", output=({"stdout": "x"},))),
            TEXT,
            [{"stdout": "x"}],
        ),
        (
            (PATCH, it.ApplyPatchCallOutput(call_id="c", status="failed", output="no")),
            TEXT,
            {"status": "failed", "output": "no"},
        ),
    ],
)
def test_successful_call_has_a_value(
    call: tuple[it.Item, ...], tool: tl.Function, value: Any
) -> None:
    outcome = call_result(call, tool)
    assert outcome is not None and not outcome.failed
    assert json.loads(outcome.value) == value


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((mcp(error={"type": "mcp_protocol_error", "message": "gone"}),), "gone"),
        ((mcp(error="plain"),), "plain"),
        ((mcp(error={"type": "http_error"}),), '{"type": "http_error"}'),
        ((mcp(status="failed"),), "The call failed."),
        ((python(status="failed", outputs=(LOGS,)),), "The call failed. four"),
        ((it.ShellCall(call_id="c", action={}, status="incomplete"),), "The call failed."),
    ],
)
def test_failed_call_throws(call: tuple[it.Item, ...], message: str) -> None:
    assert call_result(call, TEXT) == CallOutcome(json.dumps(message), failed=True)


@pytest.mark.parametrize("call", [CALL, SHELL, PATCH])
def test_unanswered_call_has_no_outcome(call: it.Item) -> None:
    assert call_result((call,), TEXT) is None


def test_return_type_depends_on_the_tool_and_its_output() -> None:
    assert return_type(CALL, TEXT) == "string"
    assert return_type(CALL, VALUE) == "Record<string, unknown>"
    assert "stdout" in return_type(SHELL, TEXT) and "status" in return_type(PATCH, TEXT)
