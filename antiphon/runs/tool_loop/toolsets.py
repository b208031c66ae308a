"""What the tools of a request offer the model once they are opened. It runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from antiphon.conversation import Options, caller_program_id, open_programs
from antiphon.errors import InvalidRequest
from antiphon.runs.request.tool_selection import (
    ServerTool,
    ToolSelection,
    function_names,
    resolve_tool_choice,
)
from antiphon.tools.allowed_callers import callers_of
from antiphon.tools.base import (
    CallsTools,
    ChecksAccess,
    DeclaresFunctions,
    ResponseContext,
    ToolFunction,
    Toolset,
)
from antiphon.tools.citations import CitationReader
from antiphon.wire import tools as tl
from antiphon.wire.items import Item

__all__ = [
    "check_access",
    "combine_toolsets",
    "declared_toolsets",
    "reader_of",
    "with_functions",
]


async def check_access(
    hosted: Sequence[ServerTool], shown: Sequence[tl.Tool], opening: ResponseContext
) -> None:
    """Raises ``RequestError`` for tools that name what is none of the tenant's, and where a program
    should go on for which there is no tool, not among those ``shown`` to an upstream either."""
    for each in hosted:
        if isinstance(each.provider, ChecksAccess):
            await each.provider.check_access(each.tool, opening, each.path)
    going = open_programs(opening.items)
    known = [*(each.tool for each in hosted), *shown]
    if going and not any(isinstance(tool, tl.ProgrammaticToolCalling) for tool in known):
        raise InvalidRequest(
            f"The program {going[0].call_id} cannot go on without a tool of type"
            " 'programmatic_tool_calling'.",
            param="tools",
            code="invalid_value",
        )


async def declared_toolsets(tools: ToolSelection, response: ResponseContext) -> list[Toolset]:
    """Return what the server's tools offer, as far as they declare it before they are opened.

    A tool that does not declare its functions offers nothing yet. Raises ``RequestError``."""
    toolsets: list[Toolset] = []
    for each in tools.server_tools:
        functions = (
            await each.provider.declared_functions(each.tool, response)
            if isinstance(each.provider, DeclaresFunctions)
            else None
        )
        toolsets.append(Toolset(functions=tuple(functions or ())))
    return combine_toolsets(tools, toolsets, response)


def combine_toolsets(
    tools: ToolSelection, toolsets: Sequence[Toolset], response: ResponseContext
) -> list[Toolset]:
    """Return what each of ``tools.server_tools`` offers the model, given what each offers alone.

    Functions get unique names. Functions that only programs may call go to the tool that runs
    programs."""
    unique = _deduplicate_names(toolsets, tools.visible_tools)
    return _assign_program_tools(
        tools.server_tools, unique, tools.program_functions or (), response
    )


def _deduplicate_names(toolsets: Sequence[Toolset], shown: Sequence[tl.Tool]) -> list[Toolset]:
    """The toolsets under names that nothing else has, what the client runs (``shown``) least of
    all: its own ``python`` is not ours."""
    taken = {one for tool in shown for one in function_names(tool)}
    out = []
    for toolset in toolsets:
        offers = []
        for offer in toolset.functions:
            name = offer.tool.name
            while (name, offer.namespace) in taken:
                name = f"{name}_"
            taken.add((name, offer.namespace))
            is_free = name == offer.tool.name
            offers.append(offer if is_free else replace(offer, tool=replace(offer.tool, name=name)))
        out.append(replace(toolset, functions=tuple(offers)))
    return out


def _assign_program_tools(
    hosted: Sequence[ServerTool],
    toolsets: Sequence[Toolset],
    own: Sequence[ToolFunction],
    opening: ResponseContext,
) -> list[Toolset]:
    """The toolsets as the model may use them: what only programs may call is offered to those that
    call others, with what the client runs for programs (``own``)."""
    pairs = list(zip(hosted, toolsets, strict=True))
    called = [offer for each, found in pairs if _is_called(each) for offer in found.functions]
    theirs = {item.id for item in opening.items if caller_program_id(item) is not None}
    first = [each for toolset in toolsets for each in toolset.pending_calls]
    allowed = {
        each.approval_request_id: each for each in first if each.approval_request_id in theirs
    }
    out = []
    for each, toolset in pairs:
        if isinstance(each.provider, CallsTools):
            toolset = each.provider.compose((*own, *called), opening, allowed)
        elif "direct" not in callers_of(each.tool):
            toolset = replace(toolset, functions=())
        own_first = tuple(
            each for each in toolset.pending_calls if each.approval_request_id not in allowed
        )
        out.append(replace(toolset, pending_calls=own_first))
    return out


def _is_called(hosted: ServerTool) -> bool:
    return "programmatic" in callers_of(hosted.tool)


def with_functions(
    options: Options, tools: ToolSelection, toolsets: Sequence[Toolset], items: Iterable[Item]
) -> Options:
    """Add the functions of the server's tools to the options, and resolve the tool choice.
    ``items``: the conversation."""
    functions = [toolset.functions for toolset in toolsets]
    shown = (_shown(function) for group in functions for function in group)
    return replace(
        options,
        tools=(*tools.visible_tools, *shown),
        tool_choice=resolve_tool_choice(tools, items, functions),
    )


def _shown(offer: ToolFunction) -> tl.Tool:
    if offer.namespace is None:
        return offer.tool
    return tl.Namespace(name=offer.namespace, tools=(offer.tool,))


def reader_of(toolsets: Sequence[Toolset]) -> Callable[[], CitationReader] | None:
    """What reads a message for all of them."""
    notations = [each.citation_notation for each in toolsets if each.citation_notation is not None]
    namings = [each.citation_finder for each in toolsets if each.citation_finder is not None]
    return partial(CitationReader, notations, namings) if notations or namings else None
