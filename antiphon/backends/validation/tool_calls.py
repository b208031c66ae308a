"""Rules for the tool calls of a reply.

If the request requires a call, the reply must contain a call. A call must name a tool that may be
called. Its arguments must match the tool's strict schema or grammar.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from antiphon.dialects.grammar.json_schema import (
    check_schema,
    llguidance_schema,
    require_all_properties,
)
from antiphon.dialects.grammar.user_grammars import input_lark
from antiphon.dialects.tools import PromptTool, PromptTools
from antiphon.errors import InvalidRequest
from antiphon.wire.items import CustomToolCall, FunctionCall

from .answer_format import AnswerFormat, json_answer_format
from .grammar_matcher import GrammarCache

_ToolName = tuple[str, str | None]


class ToolCallRules:
    """The rules for the tool calls of one request, and methods that check a call.

    ``required``: whether the reply must contain a call. ``accept_strays``: whether to accept a call
    of a tool that the request excludes, for example with ``tool_choice``. If so, the caller handles
    such calls. If ``required`` is true, such calls are rejected in any case.
    """

    def __init__(
        self, tools: PromptTools, grammars: GrammarCache, *, accept_strays: bool = False
    ) -> None:
        self.required = tools.required
        self._grammars = grammars
        self._callable = {_tool_name(tool): tool for tool in tools.callable}
        excluded = {_tool_name(tool) for tool in tools.tools} - self._callable.keys()
        self._excluded = set() if accept_strays else excluded

    def rejection(self, call: FunctionCall | CustomToolCall) -> str | None:
        """If the tool of this call may not be called, return a message that tells this to the
        model. Return None if the tool may be called."""
        name = _call_name(call)
        if name in self._excluded or (self.required and name not in self._callable):
            return f"'{call.name}' may not be called now."
        return None

    def input_format(self, call: FunctionCall | CustomToolCall) -> AnswerFormat | None:
        """Return the format that the call's input must have. Return None if the input is not
        checked."""
        tool = self._callable.get(_call_name(call))
        if tool is None or not tool.is_constrained:
            return None
        fault = f"the input does not match the format of '{call.name}'."
        if tool.grammar is None:
            input_format = json_answer_format(_schema(tool), self._grammars, fault=fault)
        else:
            try:
                input_format = AnswerFormat(
                    grammar=self._grammars.get(input_lark(tool)), fault=fault
                )
            except InvalidRequest:  # in a language of the upstream's own
                return None
        return None if input_format.grammar.is_broken else input_format

    async def fault(self, call: FunctionCall | CustomToolCall, text: str) -> str | None:
        """Check a tool call. ``text``: the input of the call. Return a message for the model about
        the fault, or None if the call is valid."""
        input_format, rejection = self.input_format(call), self.rejection(call)
        return (
            rejection
            if rejection is not None or input_format is None
            else await input_format.fault_of(text)
        )


async def tool_call_rules(
    tools: PromptTools,
    grammars: GrammarCache,
    *,
    is_enforced: bool = False,
    accept_strays: bool = False,
) -> ToolCallRules | None:
    """Return the rules for the tool calls of a request. Returns None if the request does not
    restrict the calls.

    ``is_enforced``: whether the engine or upstream enforces the rules. If so, the schemas and
    grammars of the tools are not checked here. If not, raises ``InvalidRequest`` for a schema or
    grammar that cannot be validated. ``accept_strays``: see ``ToolCallRules``.
    """
    if tools.constrained and not is_enforced:
        # On a thread, because checking a schema or grammar may take seconds.
        await asyncio.to_thread(_check, tools.constrained)
    is_bound = tools.required or (tools.is_restricted and not accept_strays)
    return (
        ToolCallRules(tools, grammars, accept_strays=accept_strays)
        if tools.constrained or is_bound
        else None
    )


def _tool_name(tool: PromptTool) -> _ToolName:
    return tool.shape.wire_name, tool.shape.namespace


def _call_name(call: FunctionCall | CustomToolCall) -> _ToolName:
    return call.name, call.namespace or None


def _schema(tool: PromptTool) -> dict[str, Any]:
    return {"type": "object", **require_all_properties(llguidance_schema(tool.schema))}


def _check(tools: Sequence[PromptTool]) -> None:
    for tool in tools:
        if tool.grammar is None:
            check_schema(json.dumps(_schema(tool)), tool.path)
        else:
            input_lark(tool)
