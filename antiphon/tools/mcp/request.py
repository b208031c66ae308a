"""Read what a request says about MCP servers. An entry of type ``mcp`` in the field ``tools`` says
which tools of an MCP server the model may use, and which calls need an approval. Items of the
conversation contain the server's list of tools, and the calls that the user has approved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from antiphon.dialects.grammar.json_schema import check_schema
from antiphon.errors import InvalidRequest, invalid_field
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.errors import unknown_parameter
from antiphon.wire.tools import Function, Mcp

#: The name that stands for all tools, as in vLLM.
_ALL_TOOLS = "*"
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


class ListedTool(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool of an MCP server, as an entry in the field ``tools`` of a ``mcp_list_tools`` item.
    Fields without a value are omitted, because clients reject nulls."""

    name: str
    input_schema: Any = {}
    description: str | None = None
    annotations: Any = None

    @property
    def is_read_only(self) -> bool:
        return self._hints("readOnlyHint")

    @property
    def effects(self) -> Literal["none", "idempotent", "any"]:
        """What a call changes, according to the MCP server (see ``ToolFunction.effects``)."""
        if self.is_read_only:
            return "none"
        return "idempotent" if self._hints("idempotentHint") else "any"

    def _hints(self, name: str) -> bool:
        return isinstance(self.annotations, Mapping) and self.annotations.get(name) is True


Rule = Callable[[ListedTool], bool]


class ToolRules(Struct, frozen=True, kw_only=True):
    """The rules that a request sets for the tools of an MCP server.

    ``allows``: whether the model may use a tool. ``needs_approval``: whether the user has to
    approve the calls of a tool. ``defers``: whether the model sees a tool only after a search.
    """

    allows: Rule
    needs_approval: Rule
    defers: Rule


def server_identity(tool: Mcp) -> str:
    """Return what the request says about which MCP server it means: a URL, a connector id or, for a
    server that the operator has configured, its label."""
    for name in (tool.server_url, tool.connector_id):
        if isinstance(name, str):
            return name
    return tool.server_label


def check_label(label: str, path: str) -> None:
    """Raise ``InvalidRequest`` for an invalid server label.

    The rules are strict because the label becomes part of function names, which models write.
    """
    if not _LABEL.fullmatch(label):
        raise invalid_field(
            path,
            "a label must begin with a letter and have at most 64 letters, digits, '_' and '-'.",
        )


def parse_tool_rules(tool: Mcp, path: str = "") -> ToolRules:
    """Read the fields of a tool that choose tools of the MCP server. Raises ``InvalidRequest``.

    ``path``: path of the tool in the request.
    """
    return ToolRules(
        allows=_parse_allowed_tools(tool.allowed_tools, f"{path}.allowed_tools"),
        needs_approval=_parse_require_approval(tool.require_approval, f"{path}.require_approval"),
        defers=_parse_deferred_tools(tool, f"{path}.deferred_tools"),
    )


def _parse_deferred_tools(tool: Mcp, path: str) -> Rule:
    if tool.deferred_tools is UNSET:
        return lambda _: tool.defer_loading is True
    matches = _parse_allowed_tools(tool.deferred_tools, path)
    return lambda each: tool.defer_loading is True or matches(each)


def _parse_allowed_tools(value: object, path: str) -> Rule:
    if value is UNSET or value is None or value == {}:
        return lambda tool: True
    if isinstance(value, list | tuple):
        return _parse_filter({"tool_names": list(value)}, path)
    return _parse_filter(value, path)


def _parse_require_approval(value: object, path: str) -> Rule:
    """Read the field ``require_approval``. Its value is ``always``, ``never``, or an object with
    filters of these names. For an object, these rules apply in order:

    - A tool that matches the filter ``always`` needs approval.
    - If there is a filter ``never``, a tool needs approval if it does not match this filter.
    - If there is only a filter ``always``, the other tools need no approval.
    - If there is no filter, every tool needs approval.
    """
    if value is UNSET or value is None or value == "always":
        return lambda tool: True
    if value == "never":
        return lambda tool: False
    if not isinstance(value, dict):
        raise _invalid_value(path, "'always', 'never' or an object with filters of these names")
    _check_fields(value, ("always", "never"), path)
    parts = {name: each for name, each in value.items() if each is not None}
    always = _parse_filter(parts["always"], f"{path}.always") if "always" in parts else None
    never = _parse_filter(parts["never"], f"{path}.never") if "never" in parts else None

    def needs_approval(tool: ListedTool) -> bool:
        if always is not None and always(tool):
            return True
        if never is not None:
            return not never(tool)
        return always is None

    return needs_approval


def _parse_filter(value: object, path: str) -> Rule:
    """Parse a tool filter. A tool matches the filter if it meets all conditions of the filter."""
    if not isinstance(value, dict):
        raise _invalid_value(
            path, "an object with 'tool_names', 'excluded_tool_names' or 'read_only'"
        )
    _check_fields(value, ("tool_names", "excluded_tool_names", "read_only"), path)
    names = _names(value, "tool_names", path)
    excluded = frozenset(_names(value, "excluded_tool_names", path) or ())
    read_only = value.get("read_only")
    if read_only is not None and not isinstance(read_only, bool):
        raise _invalid_value(f"{path}.read_only", "a boolean")
    chosen = None if names is None or _ALL_TOOLS in names else frozenset(names)
    return lambda tool: (
        (chosen is None or tool.name in chosen)
        and tool.name not in excluded
        and (read_only is None or tool.is_read_only is read_only)
    )


def _names(value: Mapping[str, object], field: str, path: str) -> list[str] | None:
    names = value.get(field)
    if names is None or (isinstance(names, list) and all(isinstance(each, str) for each in names)):
        return names
    raise _invalid_value(f"{path}.{field}", "an array of strings")


def _check_fields(value: Mapping[str, object], approved: Iterable[str], path: str) -> None:
    for name in value:
        if name not in approved:
            raise unknown_parameter(f"{path}.{name}")


def _invalid_value(path: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value for '{path}': expected {expected}.", param=path, code="invalid_value"
    )


# --- earlier items -------------------------------------------------------------------------------


def listed_tools(label: str, items: Iterable[it.Item]) -> tuple[ListedTool, ...] | None:
    """Return the tools that an MCP server has listed in the conversation. They come from the
    server's last ``mcp_list_tools`` item. Items that contain an error are skipped. Return None if
    no item is left. ``label``: the label of the MCP server. ``items``: the items of the
    conversation."""
    lists = [
        item
        for item in it.of_type(items, it.McpListTools)
        if item.server_label == label and not item.error
    ]
    return tuple(_read_tools(lists[-1].tools)) if lists else None


def _read_tools(tools: Iterable[JsonObject]) -> Iterator[ListedTool]:
    """Yield the valid tools of a list. Skip the invalid tools: the list comes from the
    conversation, so the client may have changed or written it."""
    for tool in tools:
        try:
            yield msgspec.convert(tool, ListedTool)
        except msgspec.ValidationError:
            continue


def approved_requests(label: str, items: Iterable[it.Item]) -> list[it.McpApprovalRequest]:
    """Return the approval requests that the user has approved and whose calls have not run yet.
    ``label``: the label of the MCP server."""
    requests: dict[str, it.McpApprovalRequest] = {}
    approved: dict[str, it.McpApprovalRequest] = {}
    for item in items:
        if isinstance(item, it.McpApprovalRequest) and item.server_label == label:
            requests[item.id] = item
        elif isinstance(item, it.McpApprovalResponse) and item.approve:
            if item.approval_request_id in requests:
                approved[item.approval_request_id] = requests[item.approval_request_id]
        elif isinstance(item.approval_request_id, str):
            approved.pop(item.approval_request_id, None)
    return list(approved.values())


# --- functions -----------------------------------------------------------------------------------


def to_function(tool: ListedTool) -> Function:
    """Return a tool of an MCP server as a function that the model can call.

    Characters that models cannot write in function names become ``_``. If engines cannot enforce
    the schema of the arguments, the schema becomes part of the function's description.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", tool.name)
    schema = tool.input_schema
    description = tool.description
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        schema = _NO_ARGUMENTS
    schema = {**_NO_ARGUMENTS, **{key: each for key, each in schema.items() if key != "$schema"}}
    try:
        check_schema(msgspec.json.encode(schema).decode(), "parameters")
    except InvalidRequest:
        schema_text = msgspec.json.encode(schema).decode()
        description = (
            f"{description or ''}\nThe arguments must match this JSON schema: {schema_text}".strip()
        )
        schema = {"type": "object"}
    return Function(name=name, description=description, parameters=schema)
