"""The field ``context_management``: which thinking and which tool results the model does not see.

The edits change only what the model sees in this request. The client keeps its messages, and sends
the edits with every request.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.compat.error_paths import ErrorPaths
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import invalid_value
from antiphon.wire.parsing.fields import read_array, read_object, read_objects, read_tag

from .types import ClearedToolUses

_THINKING, _TOOL_USES = "clear_thinking_20251015", "clear_tool_uses_20250919"
_COMPACT = "compact_20260112"
_CLEARED = "[The result was removed to save space.]"
_CALLS, _RESULT = "function_call", "function_call_output"
#: Anthropic's defaults: results are cleared from this number of input tokens on, except the newest.
_TRIGGER_TOKENS, _KEPT_USES = 100_000, 3
#: Estimated number of bytes per token.
_TOKEN_BYTES = 4
_MAX_EDITS = 16


class _ToolUses(Struct, frozen=True, kw_only=True):
    """Clear results of tools. ``trigger``: ``input_tokens`` or ``tool_uses``, and the number from
    which on results are cleared. ``kept``: number of newest results that are not cleared.
    ``excluded``: names of tools whose results are not cleared. ``clears_inputs``: whether the
    inputs of these calls are cleared too."""

    trigger: tuple[str, int]
    kept: int
    at_least: int
    excluded: frozenset[str]
    clears_inputs: bool


class ContextEdits(Struct, frozen=True, kw_only=True):
    """``thinking_turns``: number of newest answers whose thinking the model sees. None means all
    answers. ``compaction``: the entry of ``context_management`` in the Responses API."""

    thinking_turns: int | None = None
    tool_uses: _ToolUses | None = None
    compaction: JsonObject | None = None

    @property
    def hides_something(self) -> bool:
        return self.thinking_turns is not None or self.tool_uses is not None

    def without_old_results(
        self, items: list[JsonObject]
    ) -> tuple[list[JsonObject], tuple[ClearedToolUses, ...]]:
        """Return the input items with placeholders in the place of old tool results, and what was
        cleared. The number of tokens is estimated from the items."""
        edit = self.tool_uses
        if edit is None:
            return items, ()
        calls = {
            item["call_id"]: item for item in items if item["type"] == _CALLS and "call_id" in item
        }
        results = [item for item in items if item["type"] == _RESULT]
        kind, number = edit.trigger
        if number > (len(results) if kind == "tool_uses" else estimated_tokens(items)):
            return items, ()
        old = [
            item
            for item in results[: max(0, len(results) - edit.kept)]
            if calls.get(item["call_id"], {}).get("name") not in edit.excluded
        ]
        if not old or sum(map(estimated_tokens, old)) < edit.at_least:
            return items, ()
        cleared = {item["call_id"] for item in old}
        left = [self._cleared(item) if item.get("call_id") in cleared else item for item in items]
        tokens = max(0, estimated_tokens(items) - estimated_tokens(left))
        done = ClearedToolUses(cleared_tool_uses=len(old), cleared_input_tokens=tokens)
        return left, (done,)

    def _cleared(self, item: JsonObject) -> JsonObject:
        if item["type"] == _RESULT:
            return {**item, "output": _CLEARED}
        clears = self.tool_uses is not None and self.tool_uses.clears_inputs
        return {**item, "arguments": "{}"} if clears and item["type"] == _CALLS else item


def estimated_tokens(value: object) -> int:
    """Return about how many tokens a JSON value has."""
    return len(msgspec.json.encode(value)) // _TOKEN_BYTES


def read_edits(raw: object, path: str, paths: ErrorPaths) -> ContextEdits:
    """Read the edits that a request asks for. Raises ``InvalidRequest``."""
    if raw is None:
        return ContextEdits()
    path = f"{path}.edits"
    turns: int | None = None
    tool_uses: _ToolUses | None = None
    compaction: JsonObject | None = None
    edits = read_object(raw, "context_management").get("edits", [])
    for fields, at in read_objects(edits, path, _MAX_EDITS):
        match read_tag(fields, at, (_THINKING, _TOOL_USES, _COMPACT)):
            case "clear_thinking_20251015":
                keep = fields.get("keep", {"type": "thinking_turns", "value": 1})
                turns = _kept_turns(keep, f"{at}.keep")
            case "clear_tool_uses_20250919":
                tool_uses = _read_tool_uses(fields, at)
            case _:
                compaction = _read_compaction(fields, at, paths)
    return ContextEdits(thinking_turns=turns, tool_uses=tool_uses, compaction=compaction)


def read_compaction(raw: object, path: str, paths: ErrorPaths) -> JsonObject:
    """Read the field ``compaction``, which asks for a compaction instead of an answer. Return the
    entry of ``context_management`` in the Responses API. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    read_tag(fields, path, ("summarize",))
    return _read_compaction(fields, path, paths)


def _read_compaction(fields: JsonObject, path: str, paths: ErrorPaths) -> JsonObject:
    at = "context_management[0]"
    paths.add(at, path)
    paths.add(f"{at}.compact_threshold", f"{path}.trigger.value")
    paths.add(f"{at}.pause", f"{path}.pause_after_compaction")
    entry: JsonObject = {"type": "compaction", "show_summary": True}
    if (trigger := fields.get("trigger")) is not None:
        entry["compact_threshold"] = _amount(trigger, f"{path}.trigger", "input_tokens")[1]
    names = {"instructions": "instructions", "pause_after_compaction": "pause"}
    entry |= {ours: fields[name] for name, ours in names.items() if fields.get(name) is not None}
    return entry


def _kept_turns(keep: object, path: str) -> int | None:
    if keep == "all":
        return None
    fields = read_object(keep, path)
    if read_tag(fields, path, ("all", "thinking_turns")) == "all":
        return None
    return _number(fields.get("value"), f"{path}.value", least=1)


def _read_tool_uses(fields: JsonObject, path: str) -> _ToolUses:
    trigger = fields.get("trigger") or {"type": "input_tokens", "value": _TRIGGER_TOKENS}
    at_least = fields.get("clear_at_least") or {"type": "input_tokens", "value": 0}
    keep = fields.get("keep") or {"type": "tool_uses", "value": _KEPT_USES}
    excluded = read_array(fields.get("exclude_tools") or [], f"{path}.exclude_tools", 1_000)
    return _ToolUses(
        trigger=_amount(trigger, f"{path}.trigger", "input_tokens", "tool_uses"),
        kept=_amount(keep, f"{path}.keep", "tool_uses")[1],
        at_least=_amount(at_least, f"{path}.clear_at_least", "input_tokens")[1],
        excluded=frozenset(map(str, excluded)),
        clears_inputs=bool(fields.get("clear_tool_inputs")),
    )


def _amount(raw: object, path: str, *kinds: str) -> tuple[str, int]:
    fields = read_object(raw, path)
    return read_tag(fields, path, kinds), _number(fields.get("value"), f"{path}.value")


def _number(value: Any, path: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise invalid_value(path, str(value))
    return value
