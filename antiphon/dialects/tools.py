"""The tools in a prompt, as one flat list of functions. The list contains the functions and the
custom tools of a request.

A custom tool becomes a function with one string parameter. A function in a namespace gets a flat
name, which consists of the namespace and the function's name. ``PromptTools`` maps the names in the
API to the flat names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.dialects.async_calls import shown_tool
from antiphon.dialects.parser.tool_call import ToolShape, ToolShapes
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Options, ToolChoice
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire import tools as tl

#: The schema of the parameters of a custom tool, which the prompt shows as a function.
INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
#: OpenAI's namespace of functions without a namespace. It is not part of a flat name.
_PLAIN_NAMESPACE = "functions"
#: Types of items that add tools to the prompt.
_SOURCES = frozenset(cls for cls, kind in KINDS.items() if kind.declares_tools)
#: Types of calls that search for these tools. Clients search in a function of theirs.
_SEARCHES = frozenset({it.FunctionCall, it.ToolSearchCall})
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class PromptTool(Struct, frozen=True, kw_only=True):
    """One function as the model sees it.

    - ``name``: its flat name in the prompt, which contains its namespace. ``shape``: the tool's
      name and schema in the API.
    - ``path``: the path in the request that error messages name. For a function, it is the path of
      the function's parameters. For a custom tool, it is the path of the tool. For a tool that an
      item of the conversation adds, it is ``input``.
    - ``strict``: True means that the arguments must match the schema. None means that the engine
      enforces the schema if it can. False means that the schema need not be enforced.
    - ``grammar``: the grammar for the input of a custom tool, or None.
    - ``from_search``: whether a tool search of the model added the function. If so, the prompt
      shows the function only in the search's result. The start of the prompt then stays the same,
      so that the engine can reuse its cache.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    shape: ToolShape
    path: str
    strict: bool | None = False
    grammar: tl.GrammarFormat | None = None
    from_search: bool = False

    @property
    def is_constrained(self) -> bool:
        """Whether the input must match the schema or the grammar."""
        return bool(self.strict or self.grammar)

    def definition(self) -> dict[str, Any]:
        """Return the definition in the format of chat templates."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.schema,
            },
        }


class PromptTools(Struct, frozen=True, kw_only=True, dict=True):
    """The tools in a prompt.

    ``tools``: all tools that the model sees. ``callable``: the tools that the model may call.
    ``required``: whether the model must call a tool.
    """

    tools: tuple[PromptTool, ...] = ()
    callable: tuple[PromptTool, ...] = ()
    required: bool = False

    @cached_property
    def shapes(self) -> ToolShapes:
        """A mapping: name of a tool in the prompt (``PromptTool.name``) → the tool's name and
        schema in the API."""
        return ToolShapes((tool.name, tool.shape) for tool in self.tools)

    @cached_property
    def api_names(self) -> frozenset[tuple[str, str | None]]:
        """The (name, namespace) of each tool in the API."""
        return frozenset((tool.shape.wire_name, tool.shape.namespace) for tool in self.tools)

    @cached_property
    def constrained(self) -> tuple[PromptTool, ...]:
        """The tools that may be called and whose input must match a strict schema or a grammar."""
        return tuple(tool for tool in self.callable if tool.is_constrained)

    @property
    def initial_tools(self) -> tuple[PromptTool, ...]:
        """The tools that the start of the prompt lists: all tools except those that a tool search
        of the model found."""
        return tuple(tool for tool in self.tools if not tool.from_search)

    @property
    def is_restricted(self) -> bool:
        """Whether the model sees some tools that it may not call."""
        return len(self.callable) < len(self.tools)

    def name_of(self, name: str, namespace: str | None) -> str:
        """Return the name that a tool has in the prompt. ``name``, ``namespace``: the tool's name
        and namespace in the API.

        A past call may name a tool that the request no longer declares. For such a tool, the
        returned name consists of the namespace and the name.
        """
        return self.names.get((name, namespace)) or _flat_name(name, namespace)

    @cached_property
    def names(self) -> Mapping[tuple[str, str | None], str]:
        """A mapping: (name, namespace) of a tool in the API → its name in the prompt."""
        return {
            (tool.shape.wire_name, tool.shape.namespace): tool.name for tool in reversed(self.tools)
        }


def collect_tools(options: Options, items: Iterable[it.Item]) -> PromptTools:
    """Collect the tools that the request declares, and the tools that items of the conversation
    add.

    Clients declare a tool again after a tool search has found it. If a tool is declared several
    times, the last declaration is used. The tools of the request come before the tools of the
    items. Raises ``InvalidRequest`` if the request requires a call but allows no tool.
    """
    choice = options.tool_choice
    if choice.mode == "none":
        return PromptTools()
    items = tuple(items)
    if _SOURCES.isdisjoint(map(type, items)):
        return options.derive(_collect, (options.tools,), choice)
    return _collect(options.tools, choice, items)


def _collect(
    tools: tuple[tl.Tool, ...], choice: ToolChoice, items: tuple[it.Item, ...] = ()
) -> PromptTools:
    sources = (item for item in items if type(item) in _SOURCES | _SEARCHES)
    latest = {
        (namespace, tool.name): (tool, path, found)
        for tool, namespace, path, found in _flat(tools, sources)
    }
    if not latest and not choice.must_call:
        return PromptTools()
    taken: set[str] = set()
    shown = tuple(
        replace(_prompt_tool(tool, namespace, path, taken), from_search=found)
        for (namespace, _), (tool, path, found) in latest.items()
    )
    may_call = (tool for tool in shown if choice.allows(tool.shape.wire_name, tool.shape.namespace))
    prompt_tools = PromptTools(tools=shown, callable=tuple(may_call), required=choice.must_call)
    if prompt_tools.required and not prompt_tools.callable:
        raise InvalidRequest(
            "Tool choice requires a call, but none of the tools it allows is in 'tools'.",
            param="tool_choice",
        )
    return prompt_tools


def restrict_tools(options: Options, items: Iterable[it.Item]) -> Options:
    """Return the options without the tools that the model may not call. Such tools must not be in
    the prompt if the model's output cannot be constrained.

    Tools that items of the conversation add are not removed. Raises ``InvalidRequest`` if the
    request requires a call but allows no tool.
    """
    if options.tool_choice.allowed is None:
        return options
    prompt_tools = collect_tools(options, items)
    if not prompt_tools.is_restricted:
        return options
    left = {(tool.shape.wire_name, tool.shape.namespace) for tool in prompt_tools.callable}
    return replace(options, tools=tuple(_filter_tools(options.tools, left)))


def _filter_tools(
    tools: tuple[tl.Tool, ...], left: Collection[tuple[str, str | None]]
) -> Iterator[tl.Tool]:
    """Yield those functions and custom tools that are listed in ``left``, and all tools of other
    types. ``left``: pairs of a tool's name and its namespace."""
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            inner = tuple(each for each in tool.tools if (each.name, tool.name) in left)
            if inner:
                yield replace(tool, tools=inner)
        elif not isinstance(tool, tl.Function | tl.Custom) or (tool.name, None) in left:
            yield tool


def tool_definitions(tools: tuple[tl.Tool, ...]) -> list[dict[str, Any]]:
    """Return the definitions of ``tools`` in the format of chat templates."""
    taken: set[str] = set()
    return [
        _prompt_tool(tool, namespace, path, taken).definition()
        for tool, namespace, path, _ in _flat(tools, ())
    ]


def namespace_notes(tools: Iterable[tl.Tool], apart: Collection[str] = ()) -> list[str]:
    """Return one line with the description of each namespace. The lines are needed because the
    prompt lists the functions without their namespaces.

    ``apart``: names of the namespaces that the prompt declares elsewhere. They get no line.
    """
    return [
        f"The functions {_flat_name('', tool.name)}… belong together: {tool.description}"
        for tool in tools
        if isinstance(tool, tl.Namespace)
        and tool.description
        and tool.name not in (_PLAIN_NAMESPACE, *apart)
    ]


def _flat(
    tools: tuple[tl.Tool, ...], items: Iterable[it.Item]
) -> Iterator[tuple[tl.Function | tl.Custom, str | None, str, bool]]:
    """Yield each function and custom tool of a request and of the conversation's items, as (tool,
    namespace, path in the request, whether a tool search of the model found it)."""
    sources = [(tools, "tools", False)]
    searches: set[str] = set()
    for item in items:
        if isinstance(item, it.ToolSearchCall | it.FunctionCall) and item.call_id is not None:
            searches.add(item.call_id)
        elif item.added_tools:
            sources.append((item.added_tools, "input", item.call_id in searches))
    for group, path, found in sources:
        for index, tool in enumerate(group):
            where = f"{path}[{index}]" if path == "tools" else path
            if isinstance(tool, tl.Namespace):
                for inner, each in enumerate(tool.tools):
                    at = f"{where}.tools[{inner}]" if path == "tools" else path
                    yield each, tool.name, at, found
            elif isinstance(tool, tl.Function | tl.Custom):
                yield tool, None, where, found


def _prompt_tool(
    tool: tl.Function | tl.Custom, namespace: str | None, path: str, taken: set[str]
) -> PromptTool:
    flat = _flat_name(tool.name, namespace)
    name, count = flat, 2
    while name in taken:
        name, count = f"{flat}_{count}", count + 1
    taken.add(name)
    tool = shown_tool(tool)
    if isinstance(tool, tl.Custom):
        grammar = tool.format if isinstance(tool.format, tl.GrammarFormat) else None
        return PromptTool(
            name=name,
            description=_described(tool, grammar),
            schema=INPUT_SCHEMA,
            shape=ToolShape(
                wire_name=tool.name, namespace=namespace, custom=True, schema=INPUT_SCHEMA
            ),
            path=path,
            grammar=grammar,
        )
    schema = tool.parameters or _NO_ARGUMENTS
    return PromptTool(
        name=name,
        description=tool.description or "",
        schema=schema,
        shape=ToolShape(wire_name=tool.name, namespace=namespace, schema=schema),
        path=f"{path}.parameters" if path != "input" else path,
        strict=tool.strict,
    )


def _flat_name(name: str, namespace: str | None) -> str:
    return name if namespace in (None, _PLAIN_NAMESPACE) else f"{namespace}__{name}"


def _described(tool: tl.Custom, grammar: tl.GrammarFormat | None) -> str:
    text = "" if tool.description is UNSET else tool.description
    if grammar is None:
        return text
    syntax = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
    return f"{text}\n\nThe input must match this {syntax}:\n{grammar.definition}".strip()
