"""The tools of a request: which tools the model sees, which tools run on this server, and which
tools may be called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

import structlog
from msgspec import UNSET, Struct

from antiphon.errors import InvalidRequest, NotFound
from antiphon.inference.conversation import ToolChoice, ToolName
from antiphon.stream.kinds import KINDS
from antiphon.support.text import truncate_middle
from antiphon.tools import tool_search
from antiphon.tools.allowed_callers import callable_by_model, callable_by_programs, check_callers
from antiphon.tools.base import AnyToolProvider, ToolFunction
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.mcp.provider import McpProvider
from antiphon.wire import tools as tl
from antiphon.wire.admin.server_info import McpServerTool, ToolEntry
from antiphon.wire.items import Item
from antiphon.wire.parsing.tools import TOOL_TYPE_SPELLINGS
from antiphon.wire.request import CreateResponse
from antiphon.wire.request_shapes import derive
from antiphon.wire.response import IgnoredTool

_log = structlog.get_logger(__name__)

_PROGRAMS = "programmatic_tool_calling"
_TOOL_SEARCH = "tool_search"
#: Types of items that add tools.
_TOOL_ITEMS = frozenset(cls for cls, kind in KINDS.items() if kind.declares_tools)
_UNKNOWN = "This server does not run it."
#: Tools whose calls the client answers.
_FUNCTIONS = (tl.Function, tl.Custom, tl.Namespace)


class ServerTool(Struct, frozen=True):
    """A tool of a request that runs on this server. ``path``: the path of the tool in the request,
    for error messages."""

    type: str
    tool: tl.Tool
    provider: AnyToolProvider
    path: str


class ToolSelection(Struct, frozen=True, kw_only=True):
    """The tools of a request, grouped by who runs them.

    - ``visible_tools``: the tools that the model sees, apart from the functions of
      ``server_tools``. The model also sees these functions.
    - ``request_tools``: all tools of the request that the model may call. They include deferred
      tools, which the model finds with ``tool_search``.
    - ``choice``: the request's ``tool_choice``.
    - ``ignored_tools``: types of tools that neither this server, the upstream nor the client runs,
      each with the reason. The model does not see them.
    - ``search_functions``: the function of ``tool_search``, if the request has this tool.
    - ``server_tools``: the tools that this server runs.
    - ``async_functions``: the functions of the client whose calls are asynchronous.
    - ``program_functions``: functions of the client that programs written by the model may call.
      None if the request does not let the model write programs.
    """

    visible_tools: tuple[tl.Tool, ...] = ()
    request_tools: tuple[tl.Tool, ...] = ()
    choice: tl.ToolChoiceParam | None = None
    ignored_tools: tuple[IgnoredTool, ...] = ()
    search_functions: tuple[ToolFunction, ...] = ()
    server_tools: tuple[ServerTool, ...] = ()
    program_functions: tuple[ToolFunction, ...] | None = None
    async_functions: frozenset[ToolName] = frozenset()

    @property
    def upstream_types(self) -> frozenset[str]:
        """The types of the tools that the model's upstream runs."""
        hosted = (tool for tool in self.visible_tools if not isinstance(tool, _FUNCTIONS))
        return frozenset(tool.type for tool in hosted)

    def needs_loop(self, items: Sequence[Item]) -> bool:
        """Whether the model may have to go on after a call: after a call that runs here, or after
        an asynchronous call. ``items``: the items of the conversation, which may add tools."""
        if self.search_functions or self.server_tools or self.async_functions:
            return True
        if _TOOL_ITEMS.isdisjoint(map(type, items)):
            return False
        return bool(async_functions(discovered_tools(items)))


def select_tools(
    request: CreateResponse,
    unavailable: str,
    providers: Mapping[str, AnyToolProvider] = {},
    upstream: frozenset[str] = frozenset(),
) -> ToolSelection:
    """Group the request's tools by who runs them. Raises ``InvalidRequest``.

    ``providers``: the server-side tools by type. ``upstream``: types of tools that the model's
    upstream can run. If both a provider and the upstream can run a tool, the provider runs it.
    Tools of ``CLIENT_TOOLS`` are an exception: the upstream runs them, because its model may have
    been trained on them.

    ``unavailable``: what to do with a tool that nobody can run:

    - ``ignore`` leaves the tool out of the prompt, and the response reports this. It is the default
      of the setting ``unavailable_tools``, because common coding agents always declare hosted
      tools.
    - ``refuse`` rejects the request.

    A request whose ``tool_choice`` forces such a tool is always rejected.
    """
    # Tools of the client are selected once for a shape. Whether another tool works can change.
    if derive(request, _has_only_functions):
        return derive(request, _select_functions, upstream)
    return _select(request.tools, request.tool_choice, unavailable, providers, upstream)


def _has_only_functions(request: CreateResponse) -> bool:
    choice = request.tool_choice
    names_function = not isinstance(choice, tl.ToolChoiceObject) or choice.type == "function"
    return names_function and all(isinstance(tool, _FUNCTIONS) for tool in request.tools)


def _select_functions(request: CreateResponse, upstream: frozenset[str]) -> ToolSelection:
    return _select(request.tools, request.tool_choice, "ignore", {}, upstream)


def _select(
    tools: tuple[tl.Tool, ...],
    choice: tl.ToolChoiceParam | None,
    unavailable: str,
    providers: Mapping[str, AnyToolProvider],
    upstream: frozenset[str],
) -> ToolSelection:
    check_callers(tools)
    native = upstream & CLIENT_TOOLS.keys()
    reasons = _unavailable_reasons(_named_providers(tools, choice, providers))
    unused = native | reasons.keys()
    providers = {name: each for name, each in providers.items() if name not in unused}
    upstream = upstream - providers.keys()
    for_model = callable_by_model(tools)
    visible = tuple(tool for tool in tools if isinstance(tool, _FUNCTIONS) or tool.type in upstream)
    if _PROGRAMS not in upstream:  # otherwise the upstream distinguishes the callers itself
        visible = callable_by_model(visible)
    search_functions = _search_functions(for_model)
    if search_functions:
        visible = (
            *tool_search.without_deferred(visible),
            *(function.tool for function in search_functions),
        )
    server_tools = tuple(_server_tools(tools, providers))
    runs_programs = any(each.type == _PROGRAMS for each in server_tools)
    selection = ToolSelection(
        visible_tools=visible,
        request_tools=for_model,
        choice=choice,
        ignored_tools=_ignored_tools(
            tools, {*providers, *upstream}, reasons, refuses=unavailable == "refuse"
        ),
        search_functions=search_functions,
        server_tools=server_tools,
        program_functions=callable_by_programs(tools) if runs_programs else None,
        async_functions=async_functions(for_model),
    )
    if isinstance(choice, tl.ToolChoiceObject):
        _check_choice(choice, selection, tools, reasons)
    return selection


def resolve_tool_choice(
    tools: ToolSelection,
    items: Iterable[Item] = (),
    functions: Sequence[Sequence[ToolFunction]] = (),
) -> ToolChoice:
    """Resolve the request's ``tool_choice`` to the functions that may be called.

    ``items``: the conversation, which may declare further tools. ``functions``: for each tool in
    ``tools.server_tools``, its functions. A tool that is not open yet, or failed to open, has no
    functions. If the choice requires a call of such a tool, the returned mode is ``auto``, so the
    model may answer without a call.
    """
    choice = tools.choice or "auto"
    if choice == "required" and tools.server_tools:
        is_possible = tools.visible_tools or any(functions)
        return ToolChoice("required" if is_possible else "auto")
    if not isinstance(choice, tl.ToolChoiceObject):
        return ToolChoice(choice)
    if choice.mode == "none":
        return ToolChoice("none")
    is_list = choice.type == "allowed_tools"
    named = (choice.tools or ()) if is_list else (choice,)
    declared = (*tools.request_tools, *discovered_tools(items))
    allowed = frozenset(
        name for one in named for name in _chosen_names(one, tools, declared, functions)
    )
    hosted = tuple(one for one in named if one.type in tools.upstream_types)
    is_forced = not is_list or choice.mode == "required"
    if is_forced and not allowed and not hosted and _names_server_tool(named, tools):
        return ToolChoice("auto", allowed if is_list else None)
    if not is_list:
        return ToolChoice("one", allowed, hosted)
    return ToolChoice("required" if choice.mode == "required" else "auto", allowed, hosted)


def function_names(tool: tl.Tool) -> list[ToolName]:
    """Return the names of the functions that a tool of a request declares."""
    return [(inner.name, namespace) for inner, namespace in _flatten((tool,))]


def async_functions(tools: Iterable[tl.Tool]) -> frozenset[ToolName]:
    """Return the names of the functions of the client whose calls are asynchronous."""
    named = ((inner, namespace) for inner, namespace in _flatten(tools) if inner.async_ is True)
    return frozenset((inner.name, namespace) for inner, namespace in named)


def discovered_tools(items: Iterable[Item]) -> Iterator[tl.Tool]:
    """Yield the tools that items of a conversation declare. Such items are the outputs of tool
    searches and lists of additional tools."""
    for item in items:
        yield from item.added_tools


def tool_types(request: CreateResponse) -> tuple[str, ...]:
    """Return the types of the request's tools in order. If several types name the same tool, such
    as ``web_search_preview`` and ``web_search``, the type that ``TOOL_TYPE_SPELLINGS`` lists first
    is returned."""
    types = (tool.type for tool in request.tools)
    return tuple(TOOL_TYPE_SPELLINGS.get(type, (type,))[0] for type in types)


# --- selecting -----------------------------------------------------------------------------------


#: The tools whose provider does not show whether the server can run them → the tool whose provider
#: does. ``shell`` commands in containers need the code interpreter. The provider of ``shell`` also
#: exists for commands that run at the client.
_RUNNERS: Mapping[str, str] = {"shell": "code_interpreter"}
#: Tools that run on this server, in the order in which they are listed.
SERVER_TOOLS: tuple[tl.HostedTool, ...] = tuple(
    name
    for name in get_args(tl.HostedTool)
    if name in _RUNNERS or name not in {*CLIENT_TOOLS, _TOOL_SEARCH}
)


def list_tools(providers: Mapping[str, AnyToolProvider]) -> tuple[ToolEntry, ...]:
    """Return every type of tool that Antiphon can run, and whether this server can run it now."""
    reasons = _unavailable_reasons(providers)
    runners = {name: _RUNNERS.get(name, name) for name in SERVER_TOOLS}
    missing = {each: "It is off." for each in runners.values() if each not in providers}
    problems = {**missing, **reasons}
    servers = {
        name: each.server_labels
        for name, each in providers.items()
        if isinstance(each, McpProvider)
    }
    return tuple(
        ToolEntry(
            type=type,
            available=each not in problems,
            reason=problems.get(each),
            server_labels=servers.get(each, UNSET),
        )
        for type, each in runners.items()
    )


#: The longest name and the longest description of an MCP server's tool that are shown, in bytes.
_MAX_NAME_BYTES, _MAX_DESCRIPTION_BYTES = 200, 2_000


async def list_server_tools(
    providers: Mapping[str, AnyToolProvider], tool: tl.Mcp, tenant: str
) -> tuple[McpServerTool, ...]:
    """Ask an MCP server that the operator has configured for its tools. Raises ``NotFound``,
    ``InvalidRequest`` and ``ConnectorError``."""
    servers = providers.get("mcp")
    if not isinstance(servers, McpProvider) or tool.server_label not in servers.server_labels:
        raise NotFound(f"This server has no MCP server '{tool.server_label}'.")
    return tuple(
        McpServerTool(
            name=truncate_middle(each.name, _MAX_NAME_BYTES),
            description=each.description
            and truncate_middle(each.description, _MAX_DESCRIPTION_BYTES),
            read_only=each.is_read_only,
        )
        for each in await servers.fetch_tools(tool, tenant)
    )


def _named_providers(
    tools: Sequence[tl.Tool],
    choice: tl.ToolChoiceParam | None,
    providers: Mapping[str, AnyToolProvider],
) -> Mapping[str, AnyToolProvider]:
    """Return only the providers whose tools the request names. Asking the other providers whether
    they are available would take longer than all other work on a request."""
    if isinstance(choice, tl.ToolChoiceObject):  # may name tools that are not declared
        return providers
    names = {tool.type for tool in tools}
    return {name: each for name, each in providers.items() if name in names}


def _unavailable_reasons(providers: Mapping[str, AnyToolProvider]) -> dict[str, str]:
    """Return the tool types that do not work at the moment, each with the reason."""
    found = ((name, each.unavailable_reason()) for name, each in providers.items())
    return {name: reason for name, reason in found if reason is not None}


def _ignored_tools(
    tools: Sequence[tl.Tool], available: set[str], reasons: Mapping[str, str], *, refuses: bool
) -> tuple[IgnoredTool, ...]:
    known = (*_FUNCTIONS, tl.ToolSearch)
    ignored: dict[str, IgnoredTool] = {}
    for index, tool in enumerate(tools):
        name = tool.type
        if isinstance(tool, known) or name in available:
            continue
        reason = reasons.get(name, _UNKNOWN)
        if refuses:
            raise InvalidRequest(
                f"The tool '{name}' is not available on this server. {reason}",
                param=f"tools[{index}]",
                code="unsupported_tool",
            )
        ignored[name] = IgnoredTool(type=name, reason=reason)
    return tuple(ignored.values())


def _server_tools(
    tools: Sequence[tl.Tool], providers: Mapping[str, AnyToolProvider]
) -> Iterator[ServerTool]:
    for index, tool in enumerate(tools):
        if (provider := providers.get(tool.type)) is not None:
            path = f"tools[{index}]"
            provider.check(tool, path)
            yield ServerTool(tool.type, tool, provider, path)


def _search_functions(tools: tuple[tl.Tool, ...]) -> tuple[ToolFunction, ...]:
    """Return the function of ``tool_search``, if the request has this tool. The function gets a
    name that no function of the client has."""
    taken = {tool.name for tool in tools if isinstance(tool, tl.Function | tl.Custom)}
    searches = [tool for tool in tools if isinstance(tool, tl.ToolSearch)]
    name = tool_search.NAME
    while name in taken:
        name = f"{name}_"
    return tuple(tool_search.search_function(tool, tools, name) for tool in searches[:1])


def _check_choice(
    choice: tl.ToolChoiceObject,
    tools: ToolSelection,
    declared: Sequence[tl.Tool],
    reasons: Mapping[str, str],
) -> None:
    """Check the tool choice. Raises ``InvalidRequest`` if the choice forces a tool that nobody can
    run, or a tool that the model may not call.

    ``declared``: the tools that the request declares. ``reasons``: tool type → the reason why the
    tool does not work at the moment.
    """
    if choice.type in ("function", "custom"):
        if _declared_names(choice, declared) and not _declared_names(choice, tools.request_tools):
            raise InvalidRequest(
                f"Tool choice '{choice.name}' may be called by programs only.",
                param="tool_choice",
                code="invalid_value",
            )
        return
    available = {"allowed_tools", *(each.type for each in tools.server_tools)}
    available |= tools.upstream_types
    if tools.search_functions:
        available.add(_TOOL_SEARCH)
    if available.isdisjoint(_spellings(choice)):
        reason = next((reasons[name] for name in _spellings(choice) if name in reasons), _UNKNOWN)
        raise InvalidRequest(
            f"The tool '{choice.type}' is not available on this server, so it cannot be chosen."
            f" {reason}",
            param="tool_choice",
            code="unsupported_tool",
        )


# --- resolving -----------------------------------------------------------------------------------


def _spellings(choice: tl.ToolChoiceObject) -> tuple[str, ...]:
    return TOOL_TYPE_SPELLINGS.get(choice.type, (choice.type,))


def _chosen_names(
    choice: tl.ToolChoiceObject,
    tools: ToolSelection,
    declared: Iterable[tl.Tool],
    functions: Sequence[Sequence[ToolFunction]],
) -> Iterator[ToolName]:
    """Yield the name of each function that an entry of ``tool_choice`` selects. ``choice``: the
    entry. ``declared``: the tools of the client. ``functions``: for each tool in
    ``tools.server_tools``, its functions."""
    yield from _declared_names(choice, declared)
    if choice.type == _TOOL_SEARCH:
        yield from ((each.tool.name, each.namespace) for each in tools.search_functions)
    spellings = _spellings(choice)
    for server_tool, offered in zip(tools.server_tools, functions, strict=False):
        if server_tool.type not in spellings:
            continue
        for function in offered:
            name, namespace = function.tool.name, function.namespace
            # An ``mcp`` choice names a server, which is the namespace, and perhaps a tool of it.
            if choice.server_label in (UNSET, namespace) and choice.name in (UNSET, name):
                yield name, namespace


def _declared_names(choice: tl.ToolChoiceObject, tools: Iterable[tl.Tool]) -> list[ToolName]:
    """Return the name of each function of the client that matches an entry of ``tool_choice``. An
    entry without a namespace matches the functions of this name in all namespaces. ``choice``: the
    entry. ``tools``: the tools of the client."""
    return [
        (inner.name, namespace)
        for inner, namespace in _flatten(tools)
        if choice.type == inner.type
        and choice.name == inner.name
        and choice.namespace in (UNSET, namespace)
    ]


def _flatten(tools: Iterable[tl.Tool]) -> Iterator[tuple[tl.Function | tl.Custom, str | None]]:
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            yield from ((inner, tool.name) for inner in tool.tools)
        elif isinstance(tool, tl.Function | tl.Custom):
            yield tool, None


def _names_server_tool(named: Iterable[tl.ToolChoiceObject], tools: ToolSelection) -> bool:
    types = {each.type for each in tools.server_tools}
    return any(not types.isdisjoint(_spellings(one)) for one in named)


class IgnoredToolLog:
    """Logs a warning for the operator about the ignored tools of requests. Each tool type is logged
    once per reason."""

    def __init__(self) -> None:
        self._reported: set[IgnoredTool] = set()

    def report(self, tools: Iterable[IgnoredTool]) -> None:
        for tool in tools:
            if tool not in self._reported:
                self._reported.add(tool)
                _log.warning(f"requests declare {tool.type}, which is ignored: {tool.reason}")
