"""Filter tool calls in the reply of an upstream. Calls that the request did not allow must not
reach clients or tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.dialects.tools import PromptTools
from antiphon.inference.conversation import Options
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.wire import items as it
from antiphon.wire.tools import Custom, Function, Namespace, Tool

_CALLS = (it.FunctionCall, it.CustomToolCall)
#: Types of items that do not belong to a tool.
_PLAIN_ITEMS = (it.Message, it.Reasoning, it.Compaction)
#: Type of a tool → the beginning of the types of its items, if it differs from the tool's type.
_ITEM_PREFIXES: Mapping[str, str] = {
    "web_search_2025_08_26": "web_search",
    "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search",
    "computer_use_preview": "computer",
    "programmatic_tool_calling": "program",
}


class OfferedCallFilter:
    """Filters the deltas of one reply. ``tools``: the tools that the request offered to the model.

    - A call of a function that was not offered is converted to text, so the model's output is not
      lost. The parsers of local models do the same.
    - All function calls pass unchanged if ``Options.checks_calls`` is set, because the tool loop
      then checks the calls. They also pass unchanged if the request requires a call, because the
      validation of the reply then checks the calls.
    - An item of a hosted tool is dropped if the request does not contain this tool.
    """

    def __init__(self, options: Options, tools: PromptTools) -> None:
        self._options = options
        self._passes_functions = options.checks_calls or tools.required
        self._functions = tools.api_names
        self._is_text = self._is_dropped = False

    def filter(self, deltas: Sequence[Delta]) -> tuple[Delta, ...]:
        """Return the deltas without calls that were not offered to the model. A call of a function
        that was not offered becomes text. An item of a hosted tool that was not offered is dropped.
        """
        passed: list[Delta] = []
        for delta in deltas:
            if type(delta) is not Text:
                passed += self._filter(delta)
            elif not self._is_dropped:  # nearly all deltas are text
                passed.append(delta)
        return tuple(passed)

    def _filter(self, delta: Delta) -> tuple[Delta, ...]:
        if type(delta) is Open:
            return (*self._end_text(), *self._open(delta))
        if type(delta) is Finish:
            return (*self._end_text(), delta) if delta.reason == "stop" else (delta,)
        if self._is_text and type(delta) is Close:
            return (*self._end_text(), Close())
        return () if self._is_dropped else (delta,)

    def _open(self, delta: Open) -> tuple[Delta, ...]:
        item = delta.item
        self._is_dropped = False
        if isinstance(item, _PLAIN_ITEMS):
            return (delta,)
        if isinstance(item, _CALLS):
            if self._passes_functions or self._is_offered(item):
                return (delta,)
            self._is_text = True
            return Open(it.Message(role="assistant", content=())), Text(f"{item.name}(")
        self._is_dropped = not _tag(item).startswith(self._item_prefixes())
        return () if self._is_dropped else (delta,)

    def _item_prefixes(self) -> tuple[str, ...]:
        options = self._options
        if options.tool_choice.mode == "none":
            return ()
        return options.derive(_item_prefixes, (options.tools,))

    def _is_offered(self, call: it.FunctionCall | it.CustomToolCall) -> bool:
        if call.namespace:
            return (call.name, call.namespace) in self._functions
        # Not every server repeats the namespace.
        return any(name == call.name for name, _ in self._functions)

    def _end_text(self) -> tuple[Delta, ...]:
        if not self._is_text:
            return ()
        self._is_text = False
        return (Text(")"),)


def _item_prefixes(tools: Sequence[Tool]) -> tuple[str, ...]:
    """Return the prefixes of the item types that the hosted tools may produce, such as
    ``web_search`` for items of the type ``web_search_call``."""
    hosted = (t for t in tools if not isinstance(t, Function | Custom | Namespace))
    return tuple({_ITEM_PREFIXES.get(_tag(tool), _tag(tool)) for tool in hosted})


def _tag(struct: Any) -> str:
    return str(struct.__struct_config__.tag)
