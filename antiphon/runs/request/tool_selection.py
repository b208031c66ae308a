"""Tools of a request: which of them the model sees, and which run here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.runs.tool_loop.toolsets import ServerTool
from antiphon.tools import tool_search as search
from antiphon.tools.allowed_callers import by_the_model, check_callers, for_programs
from antiphon.tools.base import ToolFunction, ToolProvider
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.wire import tools as tl
from antiphon.wire.request import CreateResponse

__all__ = ["ToolSelection", "select_tools"]

_PROGRAMS = "programmatic_tool_calling"
_SHOWN = (tl.Function, tl.Custom, tl.Namespace)


class ToolSelection(Struct, frozen=True):
    """The tools the model is to see, the types of those nobody here can run, and what becomes of
    calls that are not plain functions of the client. ``programs``: what programs of the model may
    have the client run; None where the model can write none here."""

    tools: tuple[tl.Tool, ...]
    ignored: tuple[str, ...]
    offers: tuple[ToolFunction, ...] = ()
    hosted: tuple[ServerTool, ...] = ()
    programs: tuple[ToolFunction, ...] | None = None


def select_tools(
    request: CreateResponse,
    unavailable: str,
    providers: Mapping[str, ToolProvider] = {},
    upstream: frozenset[str] = frozenset(),
) -> ToolSelection:
    """Split the request's tools. Common coding agents always name hosted tools, so that refusing
    them would lock those clients out: ``unavailable`` is ``ignore`` (leave them out of the prompt
    and report it) or ``refuse``. A choice that forces one is always refused. ``providers``: tool
    type → who brings it. ``upstream``: types of tools that the model's upstream runs itself, where
    nobody here does. Raises ``InvalidRequest``."""
    if not request.tools and not isinstance(request.tool_choice, tl.Choice):
        return ToolSelection((), ())
    check_callers(request.tools, request.tool_choice)
    # An upstream may have been trained to what clients run by their names.
    native = upstream & CLIENT_TOOLS.keys()
    providers = {name: each for name, each in providers.items() if name not in native}
    upstream = upstream - providers.keys()
    shown: tuple[tl.Tool, ...] = tuple(
        t
        for t in request.tools
        if isinstance(t, _SHOWN) or str(t.__struct_config__.tag) in upstream
    )
    if _PROGRAMS not in upstream:  # which then is told who may call what
        shown = by_the_model(shown)
    offers = _offers(by_the_model(request.tools))
    if offers:
        shown = (*search.shown(shown), *(offer.tool for offer in offers))
    types = [str(tool.__struct_config__.tag) for tool in request.tools]
    ignored = tuple(
        dict.fromkeys(
            name
            for tool, name in zip(request.tools, types, strict=True)
            if not isinstance(tool, (*_SHOWN, tl.ToolSearch))
            and name not in providers
            and name not in upstream
        )
    )
    hosted = []
    for at, (tool, name) in enumerate(zip(request.tools, types, strict=True)):
        if name in providers:
            path = f"tools[{at}]"
            providers[name].check(tool, path)
            hosted.append(ServerTool(name, tool, providers[name], path))
    if ignored and unavailable == "refuse":
        raise InvalidRequest(
            f"The tool '{ignored[0]}' is not available on this server.",
            param=f"tools[{types.index(ignored[0])}]",
            code="unsupported_tool",
        )
    choice = request.tool_choice
    known = {"function", "custom", "allowed_tools", *(each.type for each in hosted), *upstream}
    if isinstance(choice, tl.Choice) and choice.type not in known:
        raise InvalidRequest(
            f"The tool '{choice.type}' is not available on this server, so it cannot be chosen.",
            param="tool_choice",
            code="unsupported_tool",
        )
    programs = None
    if any(each.type == _PROGRAMS for each in hosted):
        programs = for_programs(request.tools)
    return ToolSelection(shown, ignored, offers, tuple(hosted), programs)


def _offers(tools: tuple[tl.Tool, ...]) -> tuple[ToolFunction, ...]:
    """Under names that no function of the client has."""
    taken = {tool.name for tool in tools if isinstance(tool, tl.Function | tl.Custom)}
    searches = [tool for tool in tools if isinstance(tool, tl.ToolSearch)]
    name = search.NAME
    while name in taken:
        name = f"{name}_"
    return tuple(search.offer(tool, search.deferred(tools), name) for tool in searches[:1])
