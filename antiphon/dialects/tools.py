"""The tools a model is shown: one flat list of functions, whatever the request calls them.

Custom tools become functions with one string; namespaces are flattened, and the table made here
splits the names again. It knows no template and no format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct

from antiphon.conversation import Options
from antiphon.wire import items as it
from antiphon.wire import tools as tl

from .scanner import ToolShape

__all__ = ["INPUT_SCHEMA", "Shown", "ShownTool", "shown_tools"]

#: What a custom tool takes, seen as a function.
INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class ShownTool(Struct, frozen=True, kw_only=True):
    """One function as the model sees it. ``path``: where the request declares it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    shape: ToolShape
    path: str
    strict: bool = False
    grammar: tl.Grammar | None = None

    def definition(self) -> dict[str, Any]:
        """In the form chat templates take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.schema,
            },
        }


class Shown(Struct, frozen=True, kw_only=True):
    """What is shown, which of it may be called, and whether a call must come."""

    tools: tuple[ShownTool, ...] = ()
    callable: tuple[ShownTool, ...] = ()
    required: bool = False

    @property
    def shapes(self) -> Mapping[str, ToolShape]:
        return {tool.name: tool.shape for tool in self.tools}

    @property
    def restricted(self) -> bool:
        """Some of what is shown may not be called."""
        return len(self.callable) < len(self.tools)

    def name_of(self, name: str, namespace: str | None) -> str:
        """What the model was shown for a name on the wire; a tool of the past keeps its own."""
        for tool in self.tools:
            if (tool.shape.wire_name, tool.shape.namespace) == (name, namespace):
                return tool.name
        return name if namespace is None else f"{namespace}__{name}"


def shown_tools(options: Options, items: Iterable[it.Item]) -> Shown:
    """The tools of the request and those its conversation added on the way."""
    choice = options.tool_choice
    if choice == "none":
        return Shown()
    taken: set[str] = set()
    tools = tuple(
        _shown(tool, namespace, path, taken)
        for tool, namespace, path in _flat(options.tools, items)
    )
    if not isinstance(choice, tl.Choice):
        return Shown(tools=tools, callable=tools, required=choice == "required" and bool(tools))
    if choice.type == "allowed_tools":
        named = choice.tools or ()
        allowed = tuple(tool for tool in tools if any(_is(one, tool) for one in named))
        if choice.mode == "none":
            return Shown()
        return Shown(tools=tools, callable=allowed, required=choice.mode == "required")
    return Shown(
        tools=tools, callable=tuple(tool for tool in tools if _is(choice, tool)), required=True
    )


def _flat(
    tools: tuple[tl.Tool, ...], items: Iterable[it.Item]
) -> Iterator[tuple[tl.Function | tl.Custom, str | None, str]]:
    sources = [(tools, "tools")]
    sources += [
        (item.tools, "input")
        for item in items
        if isinstance(item, it.AdditionalTools | it.ToolSearchOutput)
    ]
    for group, path in sources:
        for index, tool in enumerate(group):
            where = f"{path}[{index}]" if path == "tools" else path
            if isinstance(tool, tl.Namespace):
                for inner, each in enumerate(tool.tools):
                    yield each, tool.name, f"{where}.tools[{inner}]" if path == "tools" else path
            elif isinstance(tool, tl.Function | tl.Custom):
                yield tool, None, where


def _shown(
    tool: tl.Function | tl.Custom, namespace: str | None, path: str, taken: set[str]
) -> ShownTool:
    flat = tool.name if namespace is None else f"{namespace}__{tool.name}"
    name, count = flat, 2
    while name in taken:
        name, count = f"{flat}_{count}", count + 1
    taken.add(name)
    if isinstance(tool, tl.Custom):
        grammar = tool.format if isinstance(tool.format, tl.Grammar) else None
        return ShownTool(
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
    return ShownTool(
        name=name,
        description=tool.description or "",
        schema=schema,
        shape=ToolShape(wire_name=tool.name, namespace=namespace, schema=schema),
        path=f"{path}.parameters" if path != "input" else path,
        strict=bool(tool.strict),
    )


def _described(tool: tl.Custom, grammar: tl.Grammar | None) -> str:
    text = "" if tool.description is UNSET else tool.description
    if grammar is None:
        return text
    syntax = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
    return f"{text}\n\nThe input must match this {syntax}:\n{grammar.definition}".strip()


def _is(choice: tl.Choice, tool: ShownTool) -> bool:
    kind = "custom" if tool.shape.custom else "function"
    same = choice.namespace is UNSET or choice.namespace == tool.shape.namespace
    return choice.type == kind and choice.name == tool.shape.wire_name and same
