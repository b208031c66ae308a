"""What a request wants of a server: which of its tools, and which of them a user has to allow.
Each form of the API is checked here and becomes a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.dialects.grammar.json_schema import check_schema
from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire.tools import Function, Mcp

__all__ = [
    "ListedTool",
    "ToolRules",
    "approved_requests",
    "check_label",
    "listed_tools",
    "parse_tool_rules",
    "to_function",
]

Json = dict[str, Any]

_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NO_ARGUMENTS: Json = {"type": "object", "properties": {}}


class ListedTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as ``mcp_list_tools`` shows it. What it lacks is absent: clients refuse nulls."""

    name: str
    input_schema: Any = {}
    description: str | None = None
    annotations: Any = None

    @property
    def is_read_only(self) -> bool:
        found = self.annotations
        return isinstance(found, Mapping) and found.get("readOnlyHint") is True


Rule = Callable[[ListedTool], bool]


class ToolRules(Struct, frozen=True, kw_only=True):
    """``wanted``: the model is shown the tool. ``asks``: a user has to allow its calls."""

    allows: Rule
    needs_approval: Rule


def check_label(label: str, path: str) -> None:
    """Labels become part of names that models write. Raises ``InvalidRequest``."""
    if not _LABEL.fullmatch(label):
        raise InvalidRequest(
            f"Invalid '{path}': a label begins with a letter and has at most 64 letters, digits,"
            " '_' and '-'.",
            param=path,
            code="invalid_value",
        )


def parse_tool_rules(tool: Mcp, path: str = "") -> ToolRules:
    """``path``: where the request has the tool. Raises ``InvalidRequest``."""
    return ToolRules(
        allows=_parse_allowed_tools(tool.allowed_tools, f"{path}.allowed_tools"),
        needs_approval=_parse_require_approval(tool.require_approval, f"{path}.require_approval"),
    )


def _parse_allowed_tools(given: Any, path: str) -> Rule:
    if given is UNSET or given is None or given == {}:
        return lambda tool: True
    if isinstance(given, list | tuple):
        return _parse_filter({"tool_names": list(given)}, path)
    return _parse_filter(given, path)


def _parse_require_approval(given: Any, path: str) -> Rule:
    """``always`` and ``never`` may each name some. What neither names is asked for, unless only
    ``always`` says anything: whoever lists what has to be allowed means that the rest need not."""
    if given is UNSET or given is None or given == "always":
        return lambda tool: True
    if given == "never":
        return lambda tool: False
    if not isinstance(given, dict):
        raise _invalid_value(path, "'always', 'never' or an object with filters of these names")
    _check_fields(given, ("always", "never"), path)
    parts = {name: each for name, each in given.items() if each is not None}
    always = _parse_filter(parts["always"], f"{path}.always") if "always" in parts else None
    never = _parse_filter(parts["never"], f"{path}.never") if "never" in parts else None

    def asks(tool: ListedTool) -> bool:
        if always is not None and always(tool):
            return True
        if never is not None:
            return not never(tool)
        return always is None

    return asks


def _parse_filter(given: Any, path: str) -> Rule:
    """All that it says must be true of a tool."""
    if not isinstance(given, dict):
        raise _invalid_value(path, "an object with 'tool_names' or 'read_only'")
    _check_fields(given, ("tool_names", "read_only"), path)
    names, reads = given.get("tool_names"), given.get("read_only")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise _invalid_value(f"{path}.tool_names", "an array of strings")
    if reads is not None and not isinstance(reads, bool):
        raise _invalid_value(f"{path}.read_only", "a boolean")
    chosen = None if names is None else frozenset(names)
    return lambda tool: (
        (chosen is None or tool.name in chosen) and (reads is None or tool.is_read_only is reads)
    )


def _check_fields(given: Mapping[str, Any], allowed: Iterable[str], path: str) -> None:
    for name in given:
        if name not in allowed:
            raise InvalidRequest(
                f"Unknown parameter: '{path}.{name}'.",
                param=f"{path}.{name}",
                code="unknown_parameter",
            )


def _invalid_value(path: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value for '{path}': expected {expected}.", param=path, code="invalid_value"
    )


# --- what came before ----------------------------------------------------------------------------


def listed_tools(label: str, items: Iterable[it.Item]) -> tuple[ListedTool, ...] | None:
    """The tools of a server as the conversation lists them; None: it does not."""
    lists = [
        item
        for item in items
        if isinstance(item, it.McpListTools) and item.server_label == label and not item.error
    ]
    return tuple(_read_tools(lists[-1].tools)) if lists else None


def _read_tools(tools: Iterable[Json]) -> Iterator[ListedTool]:
    """A client may have written the list: what is no tool is left out."""
    for tool in tools:
        try:
            yield msgspec.convert(tool, ListedTool)
        except msgspec.ValidationError:
            continue


def approved_requests(label: str, items: Iterable[it.Item]) -> list[it.McpApprovalRequest]:
    """What was asked of the user, was allowed, and has not been run."""
    asked: dict[str, it.McpApprovalRequest] = {}
    allowed: dict[str, it.McpApprovalRequest] = {}
    for item in items:
        if isinstance(item, it.McpApprovalRequest) and item.server_label == label:
            asked[item.id] = item
        elif isinstance(item, it.McpApprovalResponse) and item.approve:
            if item.approval_request_id in asked:
                allowed[item.approval_request_id] = asked[item.approval_request_id]
        elif isinstance(item, it.McpCall) and isinstance(item.approval_request_id, str):
            allowed.pop(item.approval_request_id, None)
    return list(allowed.values())


# --- what the model is shown ---------------------------------------------------------------------


def to_function(tool: ListedTool) -> Function:
    """Under a name that models can write, with a schema that engines can hold them to; one they
    cannot is told in words."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)
    schema = tool.input_schema
    about = tool.description
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        schema = _NO_ARGUMENTS
    schema = {**_NO_ARGUMENTS, **{key: each for key, each in schema.items() if key != "$schema"}}
    try:
        check_schema(msgspec.json.encode(schema).decode(), "parameters")
    except InvalidRequest:
        told = msgspec.json.encode(schema).decode()
        about = f"{about or ''}\nThe arguments are of this JSON schema: {told}".strip()
        schema = {"type": "object"}
    return Function(name=name, description=about, parameters=schema)
