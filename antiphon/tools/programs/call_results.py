"""What a program is told of its calls: read from the items of the conversation and from nothing
else, so that it is told the same whenever it is run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, to_builtins

from antiphon.sandbox.javascript import Answer
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .typescript import typed

__all__ = ["ANSWERED", "call_result", "returned"]

_BROKE = "The call failed."
_SHELL = "{ stdout: string; stderr: string; outcome: { type: string; exit_code?: number } }[]"
_PATCH = "{ status: string; output: string }"

#: Items of calls that programs make → what they call.
ANSWERED: Mapping[type[it.ItemBase], Callable[[Any], tuple[str, ...]]] = {
    it.FunctionCall: lambda call: _named(call.namespace, call.name),
    it.CustomToolCall: lambda call: _named(call.namespace, call.name),
    it.McpCall: lambda call: (call.server_label, call.name),
    it.McpApprovalRequest: lambda call: (call.server_label, call.name),
    it.CodeInterpreterCall: lambda call: ("python",),
    it.ShellCall: lambda call: ("shell",),
    it.ApplyPatchCall: lambda call: ("apply_patch",),
}


def _named(namespace: Any, name: str) -> tuple[str, ...]:
    return (name,) if namespace is UNSET or namespace is None else (namespace, name)


def call_result(call: Sequence[it.Item], tool: tl.Function | tl.Custom) -> Answer | None:
    """What came of a call, given its item and what followed. None: nothing yet, the client has to
    answer it."""
    made, output = call[0], call[1] if len(call) > 1 else None
    match made, output:
        case it.McpCall(), _:
            return _mcp(made)
        case it.McpApprovalRequest(), it.McpCall():
            return _mcp(output)
        case it.McpApprovalRequest(), it.McpApprovalResponse(approve=True):
            return _thrown(_BROKE)
        case it.McpApprovalRequest(), it.McpApprovalResponse():
            why = f": {output.reason}" if output.reason else "."
            return _thrown(f"The user did not allow this call{why}")
        case it.CodeInterpreterCall(), _:
            return _python(made)
        case _, it.FunctionCallOutput() | it.CustomToolCallOutput():
            return _value(output.output, tool)
        case _, it.ShellCallOutput():
            return Answer(_json(list(output.output)))
        case _, it.ApplyPatchCallOutput():
            said = "" if output.output is UNSET else output.output
            return Answer(_json({"status": output.status, "output": said}))
    if getattr(made, "status", None) in ("failed", "incomplete"):
        return _thrown(_BROKE)
    return None


def returned(shell: it.Item, tool: tl.Function | tl.Custom) -> str:
    """The type of what a call comes to."""
    if isinstance(shell, it.ShellCall):
        return _SHELL
    if isinstance(shell, it.ApplyPatchCall):
        return _PATCH
    schema = tool.output_schema if isinstance(tool, tl.Function) else UNSET
    return "string" if schema is UNSET else typed(schema)


def _mcp(call: it.McpCall) -> Answer:
    if call.error is not None:
        return _thrown(_said(call.error))
    return _thrown(_BROKE) if call.status == "failed" else Answer(_json(call.output or ""))


def _said(error: Any) -> str:
    """An error in words, if it has some."""
    if isinstance(error, str):
        return error
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else _json(error)


def _python(call: it.CodeInterpreterCall) -> Answer:
    logs = "".join(each.get("logs", "") for each in call.outputs or () if isinstance(each, dict))
    if call.status in ("failed", "incomplete"):
        return _thrown(f"{_BROKE} {logs}".strip())
    return Answer(_json(logs))


def _value(output: it.ToolOutput, tool: tl.Function | tl.Custom) -> Answer:
    """A text is a value where the tool says that it gives one."""
    if not isinstance(output, str):
        return Answer(_json(to_builtins(output)))
    if isinstance(tool, tl.Function) and tool.output_schema is not UNSET:
        try:
            return Answer(_json(json.loads(output)))
        except (ValueError, RecursionError):
            pass
    return Answer(_json(output))


def _thrown(message: str) -> Answer:
    return Answer(_json(message), failed=True)


def _json(value: Any) -> str:
    """Raises ``ValueError`` for numbers that JSON has not."""
    return json.dumps(value, allow_nan=False)
