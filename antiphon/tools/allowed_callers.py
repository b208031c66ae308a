"""Who may call which tools: the model itself, or programs that it writes. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .base import ToolFunction

__all__ = ["by_the_model", "callers_of", "check_callers", "for_programs"]

_DIRECT = ("direct",)


def callers_of(tool: Any) -> Sequence[str]:
    """Who may call a tool of a request."""
    found = getattr(tool, "allowed_callers", UNSET)
    return _DIRECT if found is UNSET else found


def check_callers(tools: Sequence[tl.Tool], choice: Any) -> None:
    """Raises ``InvalidRequest`` for what nobody may call, and for a choice of what the model may
    not."""
    programs = any(isinstance(tool, tl.ProgrammaticToolCalling) for tool in tools)
    for path, tool in _each(tools):
        if "direct" in callers_of(tool):
            continue
        if not programs:
            raise InvalidRequest(
                "Only programs may call this tool, and there is no tool of type"
                " 'programmatic_tool_calling'.",
                param=f"{path}.allowed_callers",
                code="invalid_value",
            )
        name = getattr(tool, "name", None)
        if isinstance(choice, tl.Choice) and choice.name == name is not None:
            raise InvalidRequest(
                f"Tool choice '{name}' may be called by programs only.",
                param="tool_choice",
                code="invalid_value",
            )


def by_the_model(tools: Iterable[tl.Tool]) -> tuple[tl.Tool, ...]:
    """The client's tools without those that only programs may call."""
    kept: list[tl.Tool] = []
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            inner = tuple(each for each in tool.tools if "direct" in callers_of(each))
            if inner:
                kept.append(replace(tool, tools=inner))
        elif "direct" in callers_of(tool):
            kept.append(tool)
    return tuple(kept)


def for_programs(tools: Iterable[tl.Tool]) -> tuple[ToolFunction, ...]:
    """The client's tools that programs may call."""
    placed: list[tuple[tl.Tool, str | None]] = []
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            placed += ((each, tool.name) for each in tool.tools)
        else:
            placed.append((tool, None))
    return tuple(
        _offer(tool, space)
        for tool, space in placed
        if isinstance(tool, tl.Function | tl.Custom) and "programmatic" in callers_of(tool)
    )


def _offer(tool: tl.Function | tl.Custom, space: str | None) -> ToolFunction:
    namespace = UNSET if space is None else space
    shell: it.Item = (
        it.CustomToolCall(call_id="", name=tool.name, input="", namespace=namespace)
        if isinstance(tool, tl.Custom)
        else it.FunctionCall(call_id="", name=tool.name, arguments="", namespace=namespace)
    )
    return ToolFunction(tool=tool, shell=shell, streamed=True, namespace=space)


def _each(tools: Sequence[tl.Tool]) -> Iterator[tuple[str, Any]]:
    for at, tool in enumerate(tools):
        yield f"tools[{at}]", tool
        if isinstance(tool, tl.Namespace):
            for inner, each in enumerate(tool.tools):
                yield f"tools[{at}].tools[{inner}]", each
