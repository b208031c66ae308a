"""Parse tools and ``tool_choice``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from antiphon.errors import InvalidRequest
from antiphon.wire import tools as tl
from antiphon.wire.json_types import JsonObject

from .errors import (
    empty_value,
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    pattern_mismatch,
    too_long_error,
    unknown_parameter,
)
from .fields import classes_by_tag, convert, drop_nulls, read_array, read_object, read_tag

_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_MAX_NAME_CHARS = 128  # the SDK's limit; Open Responses has 64
_MAX_NAMESPACE_CHARS = 64
_MAX_ALLOWED_TOOLS = 128  # tools of an `allowed_tools` choice

_TOOLS: Mapping[str, type[tl.Tool]] = classes_by_tag(tl.Tool.__args__)
_NAMESPACE_TOOLS: Mapping[str, type[tl.Tool]] = classes_by_tag((tl.Function, tl.Custom))
#: The tools that the model may call without waiting for their output.
_ASYNC_TOOLS = (tl.Function, tl.Custom)
_MODES = ("none", "auto", "required")
_CHOICES = ("function", "custom", "mcp", "allowed_tools", *tl.HOSTED_CHOICES)
_REQUIRED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "function": ("name",),
    "custom": ("name",),
    "mcp": ("server_label",),
    "allowed_tools": ("mode", "tools"),
}
#: Groups of types that name the same tool. A choice with one type of a group matches a tool that
#: was declared with any type of this group.
_SPELLINGS = (
    ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    ("computer", "computer_use", "computer_use_preview"),
)
TOOL_TYPE_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    name: group for group in _SPELLINGS for name in group
}
#: Tool type of gpt-oss's servers → the fields of the tool of this server.
_ALIASES: Mapping[str, Mapping[str, Any]] = {
    "browser_search": {"type": "web_search"},
    "container": {"type": "shell", "environment": {"type": "container_auto"}},
}
_CHAT_SHAPE_HINT = (
    " This looks like a tool of the Chat Completions API; here its fields are next to 'type'."
)


def read_tools(raw: object, path: str, limit: int) -> tuple[tl.Tool, ...]:
    """Read an array of at most ``limit`` tools. Raises ``InvalidRequest``."""
    return tuple(
        _read_tool(tool, f"{path}[{index}]", limit, _TOOLS)
        for index, tool in enumerate(read_array(raw, path, limit))
    )


def _read_tool(raw: object, path: str, limit: int, allowed: Mapping[str, type[tl.Tool]]) -> tl.Tool:
    fields = read_object(raw, path)
    if allowed is _TOOLS:
        fields = _resolve_alias(fields)
    cls = allowed[read_tag(fields, path, allowed)]
    if "name" not in fields and "function" in fields:
        raise missing_parameter(f"{path}.name", _CHAT_SHAPE_HINT)
    if cls is tl.Namespace and "tools" in fields:
        inner = read_array(fields["tools"], f"{path}.tools", limit)
        fields["tools"] = tuple(
            _read_tool(tool, f"{path}.tools[{index}]", limit, _NAMESPACE_TOOLS)
            for index, tool in enumerate(inner)
        )
    for group in ("filters", "user_location", "format"):
        if isinstance(fields.get(group), dict):
            fields[group] = drop_nulls(fields[group])
    if fields.get("async") and cls not in _ASYNC_TOOLS:
        raise unknown_parameter(f"{path}.async")
    tool = convert(fields, cls, path)
    _check_tool(tool, path)
    return tool


def _resolve_alias(fields: JsonObject) -> JsonObject:
    """Replace an alias of a tool type by the type that Antiphon uses, for example
    ``browser_search`` by ``web_search``. Add the fields that the alias implies. Fields that the
    request sets are kept."""
    kind = fields.get("type")
    alias = _ALIASES.get(kind) if isinstance(kind, str) else None
    return fields if alias is None else {**alias, **fields, "type": alias["type"]}


def _check_tool(tool: tl.Tool, path: str) -> None:
    match tool:
        case tl.Function(name=name) | tl.Custom(name=name):
            check_name(name, f"{path}.name", _MAX_NAME_CHARS)
        case tl.Namespace(name=name):
            check_name(name, f"{path}.name", _MAX_NAMESPACE_CHARS)


def check_name(name: str, path: str, limit: int) -> None:
    """Check that a tool name matches OpenAI's pattern and has at most ``limit`` characters. Other
    names could break the prompts and grammars that contain them. Raises ``InvalidRequest``."""
    if len(name) > limit:
        raise too_long_error(path, len(name), limit)
    if not _NAME.match(name):
        raise pattern_mismatch(path, "^[a-zA-Z0-9_-]+$")


# --- tool_choice ---------------------------------------------------------------------------------


def read_tool_choice(raw: object, path: str = "tool_choice") -> tl.ToolChoiceParam:
    """Read ``tool_choice``, a mode or an object. Raises ``InvalidRequest``."""
    if isinstance(raw, str):
        if raw not in _MODES:
            raise invalid_value(path, raw, _MODES)
        return raw  # type: ignore[return-value]
    if not isinstance(raw, dict):
        raise invalid_type(path, "a string or an object", json_type_name(raw))
    return _read_choice(raw, path)


def _read_choice(raw: object, path: str) -> tl.ToolChoiceObject:
    fields = read_object(raw, path)
    if isinstance(kind := fields.get("type"), str) and kind in _ALIASES:
        fields["type"] = _ALIASES[kind]["type"]
    tag = read_tag(fields, path, _CHOICES)
    for name in _REQUIRED_FIELDS.get(tag, ()):
        if name not in fields:
            raise missing_parameter(
                f"{path}.{name}", _CHAT_SHAPE_HINT if "function" in fields else ""
            )
    if tag == "allowed_tools":
        fields["tools"] = _read_allowed_tools(fields["tools"], f"{path}.tools")
    return convert(fields, tl.ToolChoiceObject, path)


def _read_allowed_tools(raw: object, path: str) -> tuple[tl.ToolChoiceObject, ...]:
    choices = read_array(raw, path, _MAX_ALLOWED_TOOLS)
    if not choices:
        raise empty_value(path, choices)
    return tuple(_read_choice(choice, f"{path}[{index}]") for index, choice in enumerate(choices))


def check_tool_choice(choice: tl.ToolChoiceParam, tools: Iterable[tl.Tool]) -> None:
    """Check that a tool choice names only declared tools. Raises ``InvalidRequest``."""
    declared = tuple(tools)
    if choice == "required" and not declared:
        raise InvalidRequest(
            "Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice"
        )
    if not isinstance(choice, tl.ToolChoiceObject):
        return
    for one in choice.tools if choice.type == "allowed_tools" and choice.tools else (choice,):
        if not any(_chooses(one, tool) for tool in declared):
            raise InvalidRequest(
                f"Tool choice '{one.type}' not found in 'tools' parameter.", param="tool_choice"
            )


def _chooses(choice: tl.ToolChoiceObject, tool: tl.Tool) -> bool:
    match tool:
        case tl.Namespace():
            is_in_namespace = choice.namespace in (UNSET, tool.name)
            return is_in_namespace and any(_chooses(choice, inner) for inner in tool.tools)
        case tl.Function(name=name) | tl.Custom(name=name):
            return choice.name == name and choice.type == tool.type
        case tl.Mcp(server_label=label):
            return choice.type == "mcp" and choice.server_label == label
    tag = tool.type
    return tag in TOOL_TYPE_SPELLINGS.get(choice.type, (choice.type,))
