"""The functions that the server-side tools of a request offer to the model, and to the programs
that the model writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options, caller_program_id, open_programs
from antiphon.runs.request.tool_selection import (
    ServerTool,
    ToolSelection,
    function_names,
    resolve_tool_choice,
)
from antiphon.tools.allowed_callers import callers_of
from antiphon.tools.base import (
    ResponseContext,
    ToolCaller,
    ToolFunction,
    Toolset,
)
from antiphon.tools.citations import CitationReader
from antiphon.wire import tools as tl
from antiphon.wire.items import Item

#: The selection of a request without tools and without a tool choice.
_NO_TOOLS = ToolSelection()


async def check_access(
    server_tools: Sequence[ServerTool], visible_tools: Sequence[tl.Tool], response: ResponseContext
) -> None:
    """Check that the tools of a request can be used. Raises ``RequestError`` in two cases:

    - A tool refers to an object of another tenant.
    - The conversation contains a program (code that the model wrote) that has not ended, and the
      request has no tool of the type ``programmatic_tool_calling`` that could continue the program.

    ``server_tools``: the tools that Antiphon runs. ``visible_tools``: the other tools that the
    model sees, for example tools that an upstream runs.
    """
    for each in server_tools:
        await each.provider.check_access(each.tool, response, each.path)
    programs = open_programs(response.items)
    if not programs:
        return
    tools = [*(each.tool for each in server_tools), *visible_tools]
    if not any(isinstance(tool, tl.ProgrammaticToolCalling) for tool in tools):
        raise InvalidRequest(
            f"The program {programs[0].call_id} cannot continue without a tool of type"
            " 'programmatic_tool_calling'.",
            param="tools",
            code="invalid_value",
        )


async def declared_toolsets(tools: ToolSelection, response: ResponseContext) -> list[Toolset]:
    """Return the functions that the server-side tools declare before ``ToolProvider.open`` is
    called. The list has one toolset for each tool.

    If a tool cannot declare its functions in advance, its toolset is empty. Raises
    ``RequestError``.
    """
    if not tools.server_tools:
        return []
    toolsets: list[Toolset] = []
    for each in tools.server_tools:
        functions = await each.provider.declared_functions(each.tool, response)
        toolsets.append(Toolset(functions=tuple(functions or ())))
    return combine_toolsets(tools, toolsets, response)


def combine_toolsets(
    tools: ToolSelection, toolsets: Sequence[Toolset], response: ResponseContext
) -> list[Toolset]:
    """Adapt the toolsets of one response to each other. ``toolsets``: one toolset for each tool in
    ``tools.server_tools``. Returns the changed toolsets in the same order.

    Functions get unique names. A program is code that the model writes. If programs may call a
    function, the function is added to the toolset of the tool that runs programs. If the model may
    not call a function directly, the function is removed from the toolset of its own tool.
    """
    unique = deduplicate_names(toolsets, tools.visible_tools)
    return _assign_program_functions(
        tools.server_tools, unique, tools.program_functions or (), response
    )


def with_functions(
    options: Options, tools: ToolSelection, toolsets: Sequence[Toolset], items: Iterable[Item]
) -> Options:
    """Add the functions of the server-side tools to the options, and resolve the tool choice.
    ``items``: the items of the conversation."""
    if tools == _NO_TOOLS:
        return options
    functions = [toolset.functions for toolset in toolsets]
    can_search = any(each.handler is not None for each in tools.search_functions)
    visible = tuple(
        _visible_tool(function)
        for group in functions
        for function in group
        if not (function.deferred and can_search)
    )
    return replace(
        options,
        # Without functions of the server, the tools stay the same object (see ``RequestShape``).
        tools=(*tools.visible_tools, *visible) if visible else tools.visible_tools,
        tool_choice=resolve_tool_choice(tools, items, functions),
        checks_calls=bool(tools.search_functions or tools.server_tools),
        describes_media=any(function.reads_images for group in functions for function in group),
    )


def citation_reader_factory(toolsets: Sequence[Toolset]) -> Callable[[], CitationReader] | None:
    """Return a function that creates the citation reader of a message. Returns None if no tool has
    citations."""
    notations = [each.citation_notation for each in toolsets if each.citation_notation is not None]
    finders = [each.citation_finder for each in toolsets if each.citation_finder is not None]
    return partial(CitationReader, notations, finders) if notations or finders else None


# --- names and callers ---------------------------------------------------------------------------


def deduplicate_names(
    toolsets: Sequence[Toolset], visible_tools: Sequence[tl.Tool]
) -> list[Toolset]:
    """Rename functions whose name is already used, either by the client's tools (``visible_tools``)
    or by an earlier toolset."""
    taken = {name for tool in visible_tools for name in function_names(tool)}
    renamed: list[Toolset] = []
    for toolset in toolsets:
        functions: list[ToolFunction] = []
        for function in toolset.functions:
            name = function.tool.name
            while (name, function.namespace) in taken:
                name = f"{name}_"
            taken.add((name, function.namespace))
            if name != function.tool.name:
                function = replace(function, tool=replace(function.tool, name=name))
            functions.append(function)
        renamed.append(replace(toolset, functions=tuple(functions)))
    return renamed


def _assign_program_functions(
    server_tools: Sequence[ServerTool],
    toolsets: Sequence[Toolset],
    client_functions: Sequence[ToolFunction],
    response: ResponseContext,
) -> list[Toolset]:
    """Assign each function to the callers that its tool allows: the model, programs, or both. A
    program is code that the model writes.

    ``client_functions``: the client's functions that programs may call.

    Some pending calls of the toolsets are calls that a program made and that the client has
    approved. This function passes these calls to the tool that runs programs, so that the program
    can continue.
    """
    pairs = list(zip(server_tools, toolsets, strict=True))
    callable_by_programs = [
        function
        for each, toolset in pairs
        if "programmatic" in callers_of(each.tool)
        for function in toolset.functions
    ]
    program_item_ids = {item.id for item in response.items if caller_program_id(item) is not None}
    pending_calls = [call for toolset in toolsets for call in toolset.pending_calls]
    approved = {
        call.approval_request_id: call
        for call in pending_calls
        if call.approval_request_id in program_item_ids
    }
    assigned: list[Toolset] = []
    for each, toolset in pairs:
        if isinstance(each.provider, ToolCaller):
            functions = (*client_functions, *callable_by_programs)
            toolset = each.provider.compose(functions, response, approved)
        elif "direct" not in callers_of(each.tool):
            toolset = replace(toolset, functions=())
        own_calls = tuple(
            call for call in toolset.pending_calls if call.approval_request_id not in approved
        )
        assigned.append(replace(toolset, pending_calls=own_calls))
    return assigned


def _visible_tool(function: ToolFunction) -> tl.Tool:
    """Return the function as a tool declaration for the prompt. If the function has a namespace,
    the declaration is a namespace with this one function."""
    if function.namespace is None:
        return function.tool
    return tl.Namespace(name=function.namespace, tools=(function.tool,))
