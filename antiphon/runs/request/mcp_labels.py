"""Replaces MCP tools with built-in tools of this server. The operator chooses for which labels of
MCP servers (``server_label``) this is done.

Some servers offer code execution and web search as MCP tools with fixed labels. Clients that were
written for such a server can then use this server without a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire import tools as tl
from antiphon.wire.request import CreateResponse

_TOOLS: Mapping[str, tl.Tool] = {
    "code_interpreter": tl.CodeInterpreter(container={"type": "auto"}),
    "shell": tl.Shell(environment={"type": "container_auto"}),
    "web_search": tl.WebSearch(),
}


def replace_mcp_labels(request: CreateResponse, labels: Mapping[str, str]) -> CreateResponse:
    """Replace each ``mcp`` tool whose label is in ``labels`` with a built-in tool. The URL in the
    ``mcp`` tool is ignored. ``labels``: label → type of the built-in tool, as the operator has
    chosen. Raises ``InvalidRequest`` if a replaced tool has a field that the built-in tool does not
    support, such as ``require_approval``."""
    if not labels:
        return request
    tools = tuple(
        _tool(tool, labels, f"tools[{index}]") for index, tool in enumerate(request.tools)
    )
    if tools == request.tools:
        return request
    return replace(request, tools=tools, tool_choice=_choice(request.tool_choice, labels))


def _tool(tool: tl.Tool, labels: Mapping[str, str], path: str) -> tl.Tool:
    kind = labels.get(tool.server_label) if isinstance(tool, tl.Mcp) else None
    if kind is None or not isinstance(tool, tl.Mcp):
        return tool
    given = {
        "require_approval": tool.require_approval not in (UNSET, "never"),
        "allowed_tools": tool.allowed_tools is not UNSET,
    }
    for field in (field for field, is_given in given.items() if is_given):
        raise InvalidRequest(
            f"The label '{tool.server_label}' stands for the tool '{kind}' of this server, which"
            f" does not support '{field}'.",
            param=f"{path}.{field}",
            code="unsupported_parameter",
        )
    return _TOOLS[kind]


def _choice(choice: object, labels: Mapping[str, str]) -> Any:
    if not isinstance(choice, tl.ToolChoiceObject):
        return choice
    if choice.type == "mcp" and choice.server_label in labels:
        return tl.ToolChoiceObject(type=labels[str(choice.server_label)])
    if choice.tools:
        return replace(choice, tools=tuple(_choice(one, labels) for one in choice.tools))
    return choice
