"""The tool field ``allowed_callers``: whether a tool may be called by the model, by its programs
(JavaScript code that the model writes), or by both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .base import ToolFunction

_DIRECT = ("direct",)


def callers_of(tool: object) -> Sequence[str]:
    """Return the allowed callers of a tool: ``direct`` (the model), ``programmatic`` (programs that
    the model writes), or both."""
    callers = getattr(tool, "allowed_callers", UNSET)
    return _DIRECT if callers is UNSET else callers


def check_callers(tools: Sequence[tl.Tool]) -> None:
    """Raise ``InvalidRequest`` if only programs (JavaScript code of the model) may call a tool, but
    the request has no tool of type ``programmatic_tool_calling``."""
    programs = any(isinstance(tool, tl.ProgrammaticToolCalling) for tool in tools)
    for path, tool in _tools_with_paths(tools):
        if "direct" in callers_of(tool):
            continue
        if not programs:
            raise InvalidRequest(
                "Only programs may call this tool, and there is no tool of type"
                " 'programmatic_tool_calling'.",
                param=f"{path}.allowed_callers",
                code="invalid_value",
            )


def callable_by_model(tools: Iterable[tl.Tool]) -> tuple[tl.Tool, ...]:
    """Return ``tools`` without those that only programs (JavaScript code of the model) may call."""
    remaining: list[tl.Tool] = []
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            functions = tuple(
                function for function in tool.tools if "direct" in callers_of(function)
            )
            if functions:
                remaining.append(replace(tool, tools=functions))
        elif "direct" in callers_of(tool):
            remaining.append(tool)
    return tuple(remaining)


def callable_by_programs(tools: Iterable[tl.Tool]) -> tuple[ToolFunction, ...]:
    """Return the client's tools that programs (JavaScript code of the model) may call. They are
    returned as ``ToolFunction`` objects without a handler, because the client runs the calls of
    these tools."""
    with_namespace: list[tuple[tl.Tool, str | None]] = []
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            with_namespace += ((function, tool.name) for function in tool.tools)
        else:
            with_namespace.append((tool, None))
    return tuple(
        _to_tool_function(tool, namespace)
        for tool, namespace in with_namespace
        if isinstance(tool, tl.Function | tl.Custom) and "programmatic" in callers_of(tool)
    )


def _to_tool_function(tool: tl.Function | tl.Custom, namespace_name: str | None) -> ToolFunction:
    namespace = UNSET if namespace_name is None else namespace_name
    item: it.Item = (
        it.CustomToolCall(call_id="", name=tool.name, input="", namespace=namespace)
        if isinstance(tool, tl.Custom)
        else it.FunctionCall(call_id="", name=tool.name, arguments="", namespace=namespace)
    )
    return ToolFunction(tool=tool, initial_item=item, streams_text=True, namespace=namespace_name)


def _tools_with_paths(tools: Sequence[tl.Tool]) -> Iterator[tuple[str, Any]]:
    for index, tool in enumerate(tools):
        yield f"tools[{index}]", tool
        if isinstance(tool, tl.Namespace):
            for inner_index, function in enumerate(tool.tools):
                yield f"tools[{index}].tools[{inner_index}]", function
