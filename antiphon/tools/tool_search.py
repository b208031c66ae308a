"""tool_search: finds the tools that a request has put off, so that a model with hundreds of them is
shown only those it asks for. It knows no model and no run.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import ToolError
from antiphon.wire import tools as tl
from antiphon.wire.items import ToolSearchCall, ToolSearchOutput

from .base import CallContext, Result, Step, ToolFunction

__all__ = ["NAME", "deferred", "offer", "shown"]

NAME = "tool_search"
_MOST = 20
_USUAL = 5
#: Names told to the model beforehand.
_TOLD = 40
_WORD = re.compile(r"[a-z]+|[0-9]+|[^\W\d_a-zA-Z]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What the tool should do, in a few words."},
        "limit": {"type": "integer", "description": f"The most tools, {_USUAL} if not given."},
    },
    "required": ["query"],
}

_Tool = tl.Function | tl.Custom


class _Deferred(Struct, frozen=True):
    """A tool that was put off, and where it belongs."""

    tool: _Tool
    namespace: tl.Namespace | None

    @property
    def name(self) -> str:
        return f"{self.namespace.name}.{self.tool.name}" if self.namespace else self.tool.name

    @property
    def words(self) -> list[str]:
        """The words it is found by; those of names count twice."""
        tool, space = self.tool, self.namespace
        names = [tool.name, *([space.name] if space else [])]
        said = [_said(tool.description), _said(space.description) if space else ""]
        schema = tool.parameters if isinstance(tool, tl.Function) else None
        for name, inner in ((schema or {}).get("properties") or {}).items():
            said += [name, _said(inner.get("description")) if isinstance(inner, dict) else ""]
        return _words(" ".join((*names, *names, *said)))


def deferred(tools: Iterable[tl.Tool]) -> tuple[_Deferred, ...]:
    """The tools a request puts off."""
    return tuple(_deferred(tools))


def shown(tools: Iterable[tl.Tool]) -> tuple[tl.Tool, ...]:
    """The tools of a request without those it puts off."""
    return tuple(kept for tool in tools if (kept := _kept(tool)) is not None)


def offer(tool: tl.ToolSearch, found_in: tuple[_Deferred, ...], name: str = NAME) -> ToolFunction:
    """The function that searches, run here or, if the request says so, by the client."""
    by_client = tool.execution == "client"
    parameters = tool.parameters if isinstance(tool.parameters, dict) else dict(_PARAMETERS)
    return ToolFunction(
        tool=tl.Function(
            name=name,
            description=_described(tool, found_in),
            parameters=parameters if by_client else dict(_PARAMETERS),
        ),
        shell=ToolSearchCall(arguments={}, execution="client" if by_client else "server"),
        call=None if by_client else partial(_search, found_in),
        read=lambda arguments: {"arguments": _parsed(arguments)},
        failure="incomplete",
    )


async def _search(
    found_in: Sequence[_Deferred], arguments: str, context: CallContext
) -> AsyncGenerator[Step | Result, None]:
    asked = _parsed(arguments)
    query = asked.get("query") if isinstance(asked, dict) else None
    if not isinstance(query, str) or not query.strip():
        raise ToolError("tool_search needs a query: what the tool should do, in a few words.")
    limit = asked.get("limit")
    most = min(_MOST, limit) if isinstance(limit, int) and limit > 0 else _USUAL
    found = _best(found_in, query, most)
    output = ToolSearchOutput(
        call_id=context.call_id, execution="server", tools=tuple(_grouped(found))
    )
    yield Result(fields={"arguments": asked}, items=(output,))


def _best(tools: Sequence[_Deferred], query: str, most: int) -> list[_Deferred]:
    """By the words of the query that describe them, rare ones first."""
    described = [Counter(tool.words) for tool in tools]
    asked = set(_words(query))
    spread = Counter(word for words in described for word in words.keys() & asked)
    weights = {word: math.log(1 + len(tools) / count) for word, count in spread.items()}
    scores = [
        sum(weights[word] * min(words[word], 3) for word in words.keys() & asked)
        for words in described
    ]
    ranked = sorted(range(len(tools)), key=lambda at: (-scores[at], at))
    return [tools[at] for at in ranked[:most] if scores[at] > 0]


def _grouped(found: Iterable[_Deferred]) -> Iterator[tl.Tool]:
    """As a request would declare them, the best first, those of a namespace together."""
    groups: dict[str, list[_Deferred]] = {}
    for each in found:
        groups.setdefault(each.namespace.name if each.namespace else each.name, []).append(each)
    for group in groups.values():
        space = group[0].namespace
        if space is None:
            yield group[0].tool
        else:
            yield replace(space, tools=tuple(each.tool for each in group))


def _deferred(tools: Iterable[tl.Tool]) -> Iterator[_Deferred]:
    for tool in tools:
        if isinstance(tool, tl.Namespace):
            yield from (_Deferred(each, tool) for each in tool.tools if each.defer_loading is True)
        elif isinstance(tool, tl.Function | tl.Custom) and tool.defer_loading is True:
            yield _Deferred(tool, None)


def _kept(tool: tl.Tool) -> tl.Tool | None:
    if isinstance(tool, tl.Namespace):
        rest = tuple(each for each in tool.tools if each.defer_loading is not True)
        return replace(tool, tools=rest) if rest else None
    if isinstance(tool, tl.Function | tl.Custom) and tool.defer_loading is True:
        return None
    return tool


def _described(tool: tl.ToolSearch, found_in: Sequence[_Deferred]) -> str:
    own = _said(tool.description)
    if own or not found_in:
        return own or "Finds more tools. What it finds can be called from then on."
    names = ", ".join(each.name for each in found_in[:_TOLD])
    more = f" and {len(found_in) - _TOLD} more" if len(found_in) > _TOLD else ""
    return (
        "Finds more tools by what they do, and how to call them. What it finds can be called from"
        f" then on. There are: {names}{more}."
    )


def _parsed(arguments: str) -> Any:
    """The arguments as the item carries them: an object, or what was written instead of one."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return {"query": arguments} if arguments.strip() else {}


def _words(text: str) -> list[str]:
    """Short words say nothing, in the scripts that have them."""
    words = _WORD.findall(_HUMP.sub(" ", text).lower())
    return [word for word in words if len(word) > 2 or not word.isascii()]


def _said(text: Any) -> str:
    return text if isinstance(text, str) and text is not UNSET else ""
