"""The results of the tool calls that a program (JavaScript code of the model) makes, in the form
that the program gets.

They are computed only from the items of the conversation, so the program gets the same results each
time it runs again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import UNSET, to_builtins

from antiphon.dialects.messages import render_call, render_result
from antiphon.sandbox.javascript import CallOutcome
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .typescript import schema_type

_CALL_FAILED = "The call failed."
#: The TypeScript types of results that always have the same form.
_RESULT_TYPES: Mapping[type[it.ItemBase], str] = {
    it.ShellCall: "{ stdout: string; stderr: string;"
    " outcome: { type: string; exit_code?: number } }[]",
    it.ApplyPatchCall: "{ status: string; output: string }",
}

#: The types of the calls that programs can make.
_CALLS = frozenset(
    cls
    for cls, kind in KINDS.items()
    if kind.call is not None and "caller" in cls.__struct_fields__
)
#: The types of the items that contain the output of such a call.
_OUTPUTS = frozenset(cls for cls, kind in KINDS.items() if kind.answers in _CALLS)


def is_callable(item: it.Item) -> bool:
    """Return whether programs can make a call that begins with this item."""
    return type(item) in _CALLS


def is_output(item: it.Item) -> bool:
    """Return whether the item is the output of a call that programs can make."""
    return type(item) in _OUTPUTS


def call_target(item: it.Item) -> tuple[str, ...]:
    """Return the path of the function that a call names: its namespace, if it has one, and its
    name."""
    name, _ = render_call(item)
    return (item.namespace, name) if item.namespace else (name,)


def call_result(call: Sequence[it.Item], tool: tl.Function | tl.Custom) -> CallOutcome | None:
    """Return the outcome of a tool call that a program (JavaScript code of the model) made.
    ``call``: the item of the call and, if the call is answered, the item with the answer.

    Return None if the client still has to answer the call.
    """
    item, output = call[0], call[1] if len(call) > 1 else None
    match item, output:
        case it.McpCall(), _:
            return _mcp_result(item)
        case it.McpApprovalRequest(), it.McpCall():
            return _mcp_result(output)
        case it.McpApprovalRequest(), it.McpApprovalResponse(approve=True):
            return _error_result(_CALL_FAILED)
        case it.McpApprovalRequest(), it.McpApprovalResponse():
            reason = f": {output.reason}" if output.reason else "."
            return _error_result(f"The user did not allow this call{reason}")
        case it.CodeInterpreterCall(), _:
            return _python_result(item)
        case _, it.FunctionCallOutput() | it.CustomToolCallOutput():
            return _output_result(output.output, tool)
        case _, it.ShellCallOutput():
            return CallOutcome(_json(output.output))
        case _, it.ApplyPatchCallOutput():
            text = "" if output.output is UNSET else output.output
            return CallOutcome(_json({"status": output.status, "output": text}))
    if item.status in ("failed", "incomplete"):
        return _error_result(_CALL_FAILED)
    answer = item if output is None else output
    has_result = KINDS[type(answer)].result is not None
    return CallOutcome(_json(render_result(answer))) if has_result else None


def return_type(initial_item: it.Item, tool: tl.Function | tl.Custom) -> str:
    """Return the TypeScript type of the result that a program (JavaScript code of the model) gets
    when it calls a tool. ``initial_item``: the output item with which a call of the tool begins."""
    if (fixed := _RESULT_TYPES.get(type(initial_item))) is not None:
        return fixed
    schema = tool.output_schema if isinstance(tool, tl.Function) else UNSET
    return "string" if schema is UNSET else schema_type(schema)


def _mcp_result(call: it.McpCall) -> CallOutcome:
    if call.error is not None:
        return _error_result(_error_text(call.error))
    return (
        _error_result(_CALL_FAILED)
        if call.status == "failed"
        else CallOutcome(_json(call.output or ""))
    )


def _error_text(error: object) -> str:
    """Return the message of an error. If the error has no message, return the error as JSON."""
    if isinstance(error, str):
        return error
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else _json(error)


def _python_result(call: it.CodeInterpreterCall) -> CallOutcome:
    logs = "".join(each.get("logs", "") for each in call.outputs or () if isinstance(each, dict))
    if call.status in ("failed", "incomplete"):
        return _error_result(f"{_CALL_FAILED} {logs}".strip())
    return CallOutcome(_json(logs))


def _output_result(output: it.ToolOutput, tool: tl.Function | tl.Custom) -> CallOutcome:
    """Return the outcome of a program's tool call, given the output of the tool.

    If the tool has an output schema, text is parsed as JSON.
    """
    if not isinstance(output, str):
        return CallOutcome(_json(to_builtins(output)))
    if isinstance(tool, tl.Function) and tool.output_schema is not UNSET:
        try:
            return CallOutcome(_json(json.loads(output)))
        except (ValueError, RecursionError):
            pass
    return CallOutcome(_json(output))


def _error_result(message: str) -> CallOutcome:
    return CallOutcome(_json(message), failed=True)


def _json(value: object) -> str:
    """Return the value encoded as JSON. Raises ``ValueError`` for NaN and infinity."""
    return json.dumps(value, allow_nan=False)
