"""Which calls a request allows: that one comes where one must, of a tool that may be called, with
arguments that obey a strict schema or a grammar.

It knows no engine and no wire.
"""

from __future__ import annotations

import json
from typing import Any

from antiphon.dialects.grammar.json_schema import bare, check_schema, strict_form
from antiphon.dialects.grammar.user_grammars import input_lark
from antiphon.dialects.tools import PromptTool, PromptTools
from antiphon.errors import InvalidRequest
from antiphon.wire.items import CustomToolCall, FunctionCall

from .answer_format import AnswerFormat, json_form
from .grammar_matcher import GrammarCache

__all__ = ["ToolCallRules", "tool_call_rules"]

_Name = tuple[str, str | None]


class ToolCallRules:
    """Judges the calls of one reply. ``required``: there must be one; ``strays``: what may not be
    called is no matter."""

    def __init__(self, shown: PromptTools, grammars: GrammarCache, *, strays: bool = False) -> None:
        self.required = shown.required
        self._grammars = grammars
        self._callable = {_name(tool): tool for tool in shown.callable}
        kept_out = {_name(tool) for tool in shown.tools} - self._callable.keys()
        self._kept_out = set() if strays else kept_out

    def rejection(self, call: FunctionCall | CustomToolCall) -> str | None:
        """Why this may not be called, in words for who did."""
        name = _named(call)
        if name in self._kept_out or (self.required and name not in self._callable):
            return f"'{call.name}' may not be called now."
        return None

    def form(self, call: FunctionCall | CustomToolCall) -> AnswerFormat | None:
        """What its input must be, if that is asked for."""
        tool = self._callable.get(_named(call))
        if tool is None or not _is_asked(tool):
            return None
        fault = f"that is not the form that '{call.name}' takes."
        if tool.grammar is None:
            form = json_form(_schema(tool), self._grammars, fault=fault)
        else:
            try:
                form = AnswerFormat(grammar=self._grammars.of(input_lark(tool)), fault=fault)
            except InvalidRequest:  # in a language of the upstream's own
                return None
        return None if form.grammar.is_broken else form

    async def fault(self, call: FunctionCall | CustomToolCall, text: str) -> str | None:
        """What is wrong with a call that has this input, in words for who made it."""
        form, bar = self.form(call), self.rejection(call)
        return bar if bar is not None or form is None else await form.wrong(text)


def tool_call_rules(
    shown: PromptTools, grammars: GrammarCache, *, held: bool = False, strays: bool = False
) -> ToolCallRules | None:
    """None where any call is right, and none too. ``held``: who answers is held to it, so that it
    has been checked; else raises ``InvalidRequest`` for schemas and grammars that cannot be judged
    by."""
    asked = [tool for tool in shown.callable if _is_asked(tool)]
    for tool in asked:
        if not held:
            _check(tool)
    is_bound = shown.required or (shown.restricted and not strays)
    return ToolCallRules(shown, grammars, strays=strays) if asked or is_bound else None


def _is_asked(tool: PromptTool) -> bool:
    return bool(tool.strict or tool.grammar)


def _name(tool: PromptTool) -> _Name:
    return tool.shape.wire_name, tool.shape.namespace


def _named(call: FunctionCall | CustomToolCall) -> _Name:
    return call.name, call.namespace or None


def _schema(tool: PromptTool) -> dict[str, Any]:
    return {"type": "object", **strict_form(bare(tool.schema))}


def _check(tool: PromptTool) -> None:
    if tool.grammar is None:
        check_schema(json.dumps(_schema(tool)), tool.path)
    else:
        input_lark(tool)
