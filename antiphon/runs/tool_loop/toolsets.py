"""What the tools of a request offer the model once they are opened. It runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.conversation import Options, caller_program_id, open_programs
from antiphon.errors import InvalidRequest
from antiphon.tools.allowed_callers import callers_of
from antiphon.tools.base import (
    CallsTools,
    ChecksAccess,
    Provider,
    ResponseContext,
    ToolFunction,
    Toolset,
)
from antiphon.tools.citations import Citations
from antiphon.wire import tools as tl
from antiphon.wire.items import AdditionalTools, Item, ToolSearchOutput

__all__ = [
    "ServerTool",
    "allows",
    "assign_program_tools",
    "callable_names",
    "check_access",
    "deduplicate_names",
    "discovered_tools",
    "reader_of",
    "with_tools",
]


class ServerTool(Struct, frozen=True):
    """A tool of a request that runs here: its type, what the request says, who brings it, and where
    it stands in the request."""

    type: str
    tool: tl.Tool
    provider: Provider
    path: str


async def check_access(
    hosted: Sequence[ServerTool], shown: Sequence[tl.Tool], opening: ResponseContext
) -> None:
    """Raises ``RequestError`` for tools that name what is none of the tenant's, and where a program
    should go on for which there is no tool, not among those ``shown`` to an upstream either."""
    for each in hosted:
        if isinstance(each.provider, ChecksAccess):
            await each.provider.admit(each.tool, opening, each.path)
    going = open_programs(opening.items)
    known = [*(each.tool for each in hosted), *shown]
    if going and not any(isinstance(tool, tl.ProgrammaticToolCalling) for tool in known):
        raise InvalidRequest(
            f"The program {going[0].call_id} cannot go on without a tool of type"
            " 'programmatic_tool_calling'.",
            param="tools",
            code="invalid_value",
        )


def deduplicate_names(toolsets: Sequence[Toolset], shown: Sequence[tl.Tool]) -> list[Toolset]:
    """The toolsets under names that nothing else has, what the client runs (``shown``) least of
    all: its own ``python`` is not ours."""
    taken = {(one.name, one.namespace or None) for tool in shown for one in callable_names(tool)}
    out = []
    for toolset in toolsets:
        offers = []
        for offer in toolset.offers:
            name = offer.tool.name
            while (name, offer.namespace) in taken:
                name = f"{name}_"
            taken.add((name, offer.namespace))
            is_free = name == offer.tool.name
            offers.append(offer if is_free else replace(offer, tool=replace(offer.tool, name=name)))
        out.append(replace(toolset, offers=tuple(offers)))
    return out


def assign_program_tools(
    hosted: Sequence[ServerTool],
    toolsets: Sequence[Toolset],
    own: Sequence[ToolFunction],
    opening: ResponseContext,
) -> list[Toolset]:
    """The toolsets as the model may use them: what only programs may call is offered to those that
    call others, with what the client runs for programs (``own``)."""
    pairs = list(zip(hosted, toolsets, strict=True))
    called = [offer for each, found in pairs if _is_called(each) for offer in found.offers]
    theirs = {item.id for item in opening.items if caller_program_id(item) is not None}
    first = [each for toolset in toolsets for each in toolset.first]
    allowed = {each.request: each for each in first if each.request in theirs}
    out = []
    for each, toolset in pairs:
        if isinstance(each.provider, CallsTools):
            toolset = each.provider.compose((*own, *called), opening, allowed)
        elif "direct" not in callers_of(each.tool):
            toolset = replace(toolset, offers=())
        own_first = tuple(each for each in toolset.first if each.request not in allowed)
        out.append(replace(toolset, first=own_first))
    return out


def _is_called(hosted: ServerTool) -> bool:
    return "programmatic" in callers_of(hosted.tool)


def with_tools(
    options: Options, hosted: Sequence[ServerTool], toolsets: Sequence[Toolset]
) -> Options:
    """The options with what was opened. A choice of a tool is one of what it offers."""
    offers = [offer for toolset in toolsets for offer in toolset.offers]
    tools = (*options.tools, *map(_shown, offers))
    choice = options.tool_choice

    def chosen(one: tl.Choice) -> list[tl.Choice]:
        return [
            _named(offer)
            for each, toolset in zip(hosted, toolsets, strict=True)
            for offer in toolset.offers
            if each.type == one.type and _is_of(offer, one)
        ]

    types = {each.type for each in hosted}
    if choice == "required" and not tools:
        choice = "auto"
    elif isinstance(choice, tl.Choice) and choice.type in types:
        found = chosen(choice)
        choice = tl.Choice(type="allowed_tools", mode="required", tools=tuple(found))
        choice = choice if found else "auto"
    elif isinstance(choice, tl.Choice) and choice.tools:
        named = [chosen(one) if one.type in types else [one] for one in choice.tools]
        choice = replace(choice, tools=tuple(each for group in named for each in group))
    return replace(options, tools=tools, tool_choice=choice)


def _shown(offer: ToolFunction) -> tl.Tool:
    if offer.namespace is None:
        return offer.tool
    return tl.Namespace(name=offer.namespace, tools=(offer.tool,))


def callable_names(tool: tl.Tool) -> list[tl.Choice]:
    """What may be called of a tool, as choices name it."""
    if isinstance(tool, tl.Namespace):
        return [_choice(inner, tool.name) for inner in tool.tools]
    return [_choice(tool, None)] if isinstance(tool, tl.Function | tl.Custom) else []


def discovered_tools(items: Iterable[Item]) -> Iterator[tl.Tool]:
    """Tools that a conversation came to on its way."""
    for item in items:
        if isinstance(item, ToolSearchOutput | AdditionalTools):
            yield from item.tools


def allows(choice: tl.Choice, named: tl.Choice) -> bool:
    """The choice is of several tools, among them the one that is named."""
    return any(
        (one.type, one.name) == (named.type, named.name)
        and one.namespace in (UNSET, named.namespace)
        for one in choice.tools or ()
    )


def _named(offer: ToolFunction) -> tl.Choice:
    return _choice(offer.tool, offer.namespace)


def _choice(tool: tl.Function | tl.Custom, namespace: str | None) -> tl.Choice:
    kind = "custom" if isinstance(tool, tl.Custom) else "function"
    return tl.Choice(type=kind, name=tool.name, namespace=namespace or UNSET)


def _is_of(offer: ToolFunction, choice: tl.Choice) -> bool:
    """``mcp`` names a server, and perhaps a tool of it."""
    return choice.server_label in (UNSET, offer.namespace) and choice.name in (
        UNSET,
        offer.tool.name,
    )


def reader_of(toolsets: Sequence[Toolset]) -> Callable[[], Citations] | None:
    """What reads a message for all of them."""
    notations = [each.notation for each in toolsets if each.notation is not None]
    namings = [each.naming for each in toolsets if each.naming is not None]
    return partial(Citations, notations, namings) if notations or namings else None
