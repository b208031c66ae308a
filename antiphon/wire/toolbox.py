"""Reading tools, and the choice among them, from what clients send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.errors import InvalidRequest

from . import tools as tl
from .faults import bad_type, bad_value, from_validation, kind_of, missing, too_long
from .shape import literals, without_nulls

__all__ = ["check_choice", "read_choice", "read_tools"]

Json = dict[str, Any]
_NAME = re.compile(r"[a-zA-Z0-9_-]+\Z")
_NAME_LENGTH = 128  # the SDK's limit; Open Responses has 64
_NAMESPACE_LENGTH = 64

_TOOLS: Mapping[str, type[tl.ToolBase]] = {
    str(cls.__struct_config__.tag): cls for cls in tl.Tool.__args__
}
_CHOICES = ("function", "custom", "mcp", "allowed_tools", *tl.HOSTED_CHOICES)
#: Choice types that mean any of several spellings of one tool.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "computer_use": ("computer", "computer_use_preview"),
}
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "function": ("name",),
    "custom": ("name",),
    "mcp": ("server_label",),
    "allowed_tools": ("mode", "tools"),
}
_CHAT_SHAPE = (
    " This looks like a tool of the Chat Completions API; here its fields stand beside 'type'."
)


def read_tools(raw: Any, path: str, *, nested: bool = False) -> tuple[tl.Tool, ...]:
    """The tools of an array. ``nested``: inside a namespace, where only client tools may be."""
    if not isinstance(raw, list):
        raise bad_type(path, "an array", kind_of(raw))
    return tuple(_tool(tool, f"{path}[{index}]", nested) for index, tool in enumerate(raw))


def _tool(raw: Any, path: str, nested: bool) -> tl.Tool:
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    kind = raw.get("type")
    if kind is None:
        raise missing(f"{path}.type")
    allowed: Iterable[str] = ("function", "custom") if nested else _TOOLS
    cls = _TOOLS.get(kind) if isinstance(kind, str) and kind in allowed else None
    if cls is None:
        raise bad_value(f"{path}.type", kind, allowed)
    fields = without_nulls(raw)
    if issubclass(cls, tl.Function | tl.Custom) and "name" not in fields:
        raise missing(f"{path}.name", _CHAT_SHAPE if kind in fields else "")
    if cls is tl.Namespace:
        fields["tools"] = read_tools(fields.get("tools", []), f"{path}.tools", nested=True)
    for group in ("filters", "user_location"):
        if isinstance(fields.get(group), dict):
            fields[group] = without_nulls(fields[group])
    try:
        tool: tl.Tool = msgspec.convert(fields, cls)  # type: ignore[assignment]
    except msgspec.ValidationError as error:
        raise from_validation(error, path, fields, literals(cls, error)) from None
    _check_tool(tool, path)
    return tool


def _check_tool(tool: tl.Tool, path: str) -> None:
    match tool:
        case tl.Function(name=name) | tl.Custom(name=name):
            check_name(name, f"{path}.name", _NAME_LENGTH)
        case tl.Namespace(name=name):
            check_name(name, f"{path}.name", _NAMESPACE_LENGTH)
        case tl.Mcp():
            if (tool.server_url, tool.connector_id, tool.tunnel_id) == (UNSET, UNSET, UNSET):
                raise missing(f"{path}.server_url")


def check_name(name: str, path: str, limit: int) -> None:
    """Names go into prompts and grammars: OpenAI's pattern and length."""
    if len(name) > limit:
        raise too_long(path, len(name), limit)
    if not _NAME.match(name):
        raise InvalidRequest(
            f"Invalid '{path}': string does not match pattern. Expected a string that matches the "
            "pattern '^[a-zA-Z0-9_-]+$'.",
            param=path,
            code="invalid_value",
        )


def read_choice(raw: Any, path: str = "tool_choice") -> tl.ToolChoice:
    """A ``tool_choice`` of any form."""
    if isinstance(raw, str):
        if raw not in ("none", "auto", "required"):
            raise bad_value(path, raw, ("none", "auto", "required"))
        return raw  # type: ignore[return-value]
    if not isinstance(raw, dict):
        raise bad_type(path, "a string or an object", kind_of(raw))
    kind = raw.get("type")
    if kind is None:
        raise missing(f"{path}.type")
    if kind not in _CHOICES:
        raise bad_value(f"{path}.type", kind, _CHOICES)
    fields = without_nulls(raw)
    for name in _NEEDED.get(kind, ()):
        if name not in fields:
            raise missing(f"{path}.{name}")
    return _choice(fields, path)


def _choice(fields: Json, path: str) -> tl.Choice:
    if fields["type"] == "allowed_tools":
        if not isinstance(fields["tools"], list):
            raise bad_type(f"{path}.tools", "an array", kind_of(fields["tools"]))
        fields["tools"] = tuple(
            read_choice(tool, f"{path}.tools[{index}]")
            for index, tool in enumerate(fields["tools"])
        )
    try:
        return msgspec.convert(fields, tl.Choice)
    except msgspec.ValidationError as error:
        raise from_validation(error, path, fields, literals(tl.Choice, error)) from None


def check_choice(choice: tl.ToolChoice | None, tools: Iterable[tl.Tool]) -> None:
    """A choice may only name tools that are there."""
    if not isinstance(choice, tl.Choice):
        return
    declared = tuple(tools)
    named = choice.tools if choice.tools is not UNSET and choice.tools else (choice,)
    for one in named:
        if not any(_is(one, tool) for tool in declared):
            raise InvalidRequest(
                f"Tool choice '{one.type}' not found in 'tools' parameter.", param="tool_choice"
            )


def _is(choice: tl.Choice, tool: tl.Tool) -> bool:
    match tool:
        case tl.Namespace():
            inside = choice.namespace in (UNSET, tool.name)
            return inside and any(_is(choice, inner) for inner in tool.tools)
        case tl.Function(name=name) | tl.Custom(name=name):
            return choice.name == name and choice.type == tool.__struct_config__.tag
        case tl.Mcp(server_label=label):
            return choice.type == "mcp" and choice.server_label == label
    kind = str(tool.__struct_config__.tag)
    return kind in _SPELLINGS.get(choice.type, (choice.type,))
