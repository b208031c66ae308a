"""The ``tool_search`` tool: a search over the deferred tools of a request. A model with hundreds of
tools sees only the tools that it searches for."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.wire import tools as tl
from antiphon.wire.items import ToolSearchCall, ToolSearchOutput

from .base import CallContext, ToolFunction, ToolProgress, ToolResult

NAME = "tool_search"
_MAX_RESULTS = 20
_DEFAULT_RESULTS = 5
#: Limits of the list of deferred tools in the function's description: entries, and characters of an
#: entry's description.
_MAX_ENTRIES, _MAX_ENTRY_CHARS = 40, 160
_WORD_PATTERN = re.compile(r"[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do, in a few words."},
        "limit": {
            "type": "integer",
            "description": f"The maximum number of tools; default {_DEFAULT_RESULTS}.",
        },
    },
    "required": ["query"],
}

_Tool = tl.Function | tl.Custom


class _DeferredTool(Struct, frozen=True):
    """A deferred tool (one that the model sees only after a search), and its namespace."""

    tool: _Tool
    namespace: tl.Namespace | None

    @property
    def name(self) -> str:
        return f"{self.namespace.name}.{self.tool.name}" if self.namespace else self.tool.name

    @property
    def search_terms(self) -> list[str]:
        """The words by which a search finds the tool. Words of the tool's name and of its
        namespace's name are in the list twice, because they are more important."""
        tool, namespace = self.tool, self.namespace
        names = [tool.name, *([namespace.name] if namespace else [])]
        texts = [
            _text_or_empty(tool.description),
            _text_or_empty(namespace.description) if namespace else "",
        ]
        schema = tool.parameters if isinstance(tool, tl.Function) else None
        for name, inner in ((schema or {}).get("properties") or {}).items():
            texts += [
                name,
                _text_or_empty(inner.get("description")) if isinstance(inner, dict) else "",
            ]
        return _split_words(" ".join((*names, *names, *texts)))


def deferred_tools(tools: Iterable[tl.Tool]) -> tuple[_DeferredTool, ...]:
    """Return the tools of a request that are deferred (``defer_loading``)."""
    return tuple(_iter_deferred(tools))


def without_deferred(tools: Iterable[tl.Tool]) -> tuple[tl.Tool, ...]:
    """Return the tools of a request that are not deferred."""
    visible = (_without_deferred(tool) for tool in tools)
    return tuple(tool for tool in visible if tool is not None)


def search_function(
    tool: tl.ToolSearch, tools: Sequence[tl.Tool], name: str = NAME
) -> ToolFunction:
    """Return the ``ToolFunction`` by which the model searches the deferred tools. By default,
    Antiphon runs the search. If the request sets ``execution`` to ``client``, the client runs the
    search. ``tools``: the tools of the request."""
    by_client = tool.execution == "client"
    parameters = tool.parameters if isinstance(tool.parameters, dict) else dict(_PARAMETERS)
    return ToolFunction(
        tool=tl.Function(
            name=name,
            description=_description(tool, tools),
            parameters=parameters if by_client else dict(_PARAMETERS),
        ),
        initial_item=ToolSearchCall(arguments={}, execution="client" if by_client else "server"),
        handler=None if by_client else _Search(deferred_tools(tools)),
        parse_fields=lambda arguments: {"arguments": _parse_arguments(arguments)},
        failed_status="incomplete",
    )


def searching_also(
    searches: Iterable[ToolFunction], functions: Iterable[ToolFunction]
) -> Iterator[ToolFunction]:
    """Yield the functions ``searches`` so that they also find those of ``functions`` that are
    deferred: functions of MCP servers, which are known only after the server has listed them."""
    found = tuple(
        _DeferredTool(each.tool, _namespace(each.namespace)) for each in functions if each.deferred
    )
    for search in searches:
        if isinstance(search.handler, _Search):
            search = replace(search, handler=_Search((*search.handler.deferred, *found)))
        yield search


def _namespace(label: str | None) -> tl.Namespace | None:
    """Return the namespace of an MCP server's functions."""
    if label is None:
        return None
    return tl.Namespace(name=label, description=f"Tools of the MCP server {label}", tools=())


class _Search(Struct, frozen=True):
    """The handler of a search over the tools ``deferred``."""

    deferred: tuple[_DeferredTool, ...]

    async def __call__(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        parsed = _parse_arguments(arguments)
        query = parsed.get("query") if isinstance(parsed, dict) else None
        if not isinstance(query, str) or not query.strip():
            raise ToolError("tool_search needs a query: what the tool should do, in a few words.")
        limit = parsed.get("limit")
        max_results = (
            min(_MAX_RESULTS, limit) if isinstance(limit, int) and limit > 0 else _DEFAULT_RESULTS
        )
        matches = _rank(self.deferred, query, max_results)
        output = ToolSearchOutput(
            call_id=context.call_id, execution="server", tools=tuple(_group_by_namespace(matches))
        )
        yield ToolResult(fields={"arguments": parsed}, items=(output,))


def _rank(tools: Sequence[_DeferredTool], query: str, limit: int) -> list[_DeferredTool]:
    """Return the tools that match the query best, at most ``limit``. A query word that occurs in
    fewer tools counts more."""
    described = [Counter(tool.search_terms) for tool in tools]
    query_words = set(_split_words(query))
    counts = Counter(word for words in described for word in words.keys() & query_words)
    weights = {word: math.log(1 + len(tools) / count) for word, count in counts.items()}
    scores = [
        sum(weights[word] * min(words[word], 3) for word in words.keys() & query_words)
        for words in described
    ]
    ranked = sorted(range(len(tools)), key=lambda at: (-scores[at], at))
    return [tools[at] for at in ranked[:limit] if scores[at] > 0]


def _group_by_namespace(matches: Iterable[_DeferredTool]) -> Iterator[tl.Tool]:
    """Yield the matching tools in the form in which a request declares tools. The best match comes
    first. Tools of the same namespace are yielded together, in one ``Namespace``."""
    groups: dict[str, list[_DeferredTool]] = {}
    for each in matches:
        groups.setdefault(each.namespace.name if each.namespace else each.name, []).append(each)
    for group in groups.values():
        namespace = group[0].namespace
        if namespace is None:
            yield group[0].tool
        else:
            yield replace(namespace, tools=tuple(each.tool for each in group))


def _iter_deferred(tools: Iterable[tl.Tool]) -> Iterator[_DeferredTool]:
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            yield from (
                _DeferredTool(each, tool) for each in tool.tools if each.defer_loading is True
            )
        elif isinstance(tool, tl.Function | tl.Custom) and tool.defer_loading is True:
            yield _DeferredTool(tool, None)


def _without_deferred(tool: tl.Tool) -> tl.Tool | None:
    if isinstance(tool, tl.Namespace):
        rest = tuple(each for each in tool.tools if each.defer_loading is not True)
        return replace(tool, tools=rest) if rest else None
    if isinstance(tool, tl.Function | tl.Custom) and tool.defer_loading is True:
        return None
    return tool


def _description(tool: tl.ToolSearch, tools: Sequence[tl.Tool]) -> str:
    """Return the description of the search, with a list of what it can find: namespaces, functions
    and MCP servers, each with its own description."""
    text = _text_or_empty(tool.description) or (
        "Finds more tools by what they do, and how to call them. What it finds can be called from"
        " then on."
    )
    entries = [_entry(each) for each in tools if _is_searchable(each)]
    if not entries:
        return text
    more = [f"and {len(entries) - _MAX_ENTRIES} more"] if len(entries) > _MAX_ENTRIES else []
    return "\n- ".join((f"{text} It can find:", *entries[:_MAX_ENTRIES], *more))


def _is_searchable(tool: tl.Tool) -> bool:
    """Whether a tool of the request is deferred, or contains functions that are."""
    if isinstance(tool, tl.Namespace):
        return any(each.defer_loading is True for each in tool.tools)
    if isinstance(tool, tl.Mcp) and tool.deferred_tools is not UNSET:
        return True
    return isinstance(tool, tl.Function | tl.Custom | tl.Mcp) and tool.defer_loading is True


def _entry(tool: tl.Tool) -> str:
    """Return the name and the description of a deferred tool, in one line."""
    if isinstance(tool, tl.Mcp):
        name, about = tool.server_label, _text_or_empty(tool.server_description)
    else:
        assert isinstance(tool, tl.Namespace | tl.Function | tl.Custom)
        name, about = tool.name, _text_or_empty(tool.description)
    about = " ".join(about.split())
    about = about if len(about) <= _MAX_ENTRY_CHARS else about[:_MAX_ENTRY_CHARS] + "…"
    return f"{name}: {about}" if about else name


def _parse_arguments(arguments: str) -> Any:
    """Parse the arguments of a search call as JSON, for the item of the call. If the text is not
    JSON, it becomes the query."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return {"query": arguments} if arguments.strip() else {}


def _split_words(text: str) -> list[str]:
    """Split text and camel-case names into words. Words of one or two ASCII characters are dropped,
    because they carry no meaning."""
    words = _WORD_PATTERN.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text).lower())
    return [word for word in words if len(word) > 2 or not word.isascii()]


def _text_or_empty(text: Any) -> str:
    return text if isinstance(text, str) and text is not UNSET else ""
