"""Parse a reply of a case, as special tokens and as text, and in several chunkings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct, field

from antiphon.dialects.base import Parser
from antiphon.dialects.formats.types import ReasoningFormat, ToolFormat
from antiphon.dialects.parser.parser import FormatParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.inference.tokens import Chunk
from antiphon.stream.deltas import Close, Delta, FinishReason, Open, Text
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import Message, Reasoning


class Reply(Struct):
    """The text, the reasoning and the calls (name, arguments, id, status) of a reply."""

    content: str = ""
    reasoning: str = ""
    #: The content before the first call.
    lead: str = ""
    calls: list[list[str]] = field(default_factory=list)
    _kind: str = ""

    def add(self, deltas: Iterable[Delta]) -> Iterator[tuple[str, str]]:
        """Add deltas, and yield what they are: the kind and the text of each piece."""
        for delta in deltas:
            if isinstance(delta, Open):
                item: Any = delta.item
                names = {Message: "content", Reasoning: "reasoning"}
                self._kind = names.get(type(item), "call")
                if self._kind == "call":
                    self.calls.append([item.name, "", item.call_id, "in_progress"])
                    yield "call", item.name
            elif isinstance(delta, Text):
                self._add_text(delta.text)
                yield "argument" if self._kind == "call" else self._kind, delta.text
            elif isinstance(delta, Close) and self._kind == "call":
                self.calls[-1][3] = delta.status
                self._kind = ""

    def _add_text(self, text: str) -> None:
        if self._kind == "call":
            self.calls[-1][1] += text
        elif self._kind == "reasoning":
            self.reasoning += text
        else:
            self.content += text
            self.lead += "" if self.calls else text

    def read(
        self, parser: Parser, ids: list[int], size: Callable[[], int], reason: FinishReason
    ) -> Reply:
        """Feed ``ids`` in chunks of the sizes that ``size`` returns, and finish."""
        at = 0
        while at < len(ids):
            end = at + size()
            list(self.add(parser.feed(Chunk(ids=tuple(ids[at:end])))))
            at = end
        list(self.add(parser.finish(reason)))
        return self


class AnyNames(Mapping[str, ToolShape]):
    """Tools of any name: for cases that state no tools."""

    def __getitem__(self, name: str) -> ToolShape:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.\-:/@ $]{1,200}", name):
            raise KeyError(name)
        return ToolShape(wire_name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 2


_TAGS = re.compile(r"<[^<>\s=]+>|\[[A-Z_]+\]|\]<\]minimax\[>\[|｜[A-Z]+｜")


def tags_of(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> tuple[str, ...]:
    """Return the tags of two formats for which models have tokens."""
    literals: set[str] = set()
    if tools is not None:
        literals |= {*tools.opens, *tools.quote.split()}
        literals |= {literal for state in tools.states.values() for literal in state.on}
    if reasoning is not None:
        literals |= {*reasoning.open, *reasoning.close, *reasoning.answer, *reasoning.frames}
        literals.add(reasoning.header)
    found = {tag for literal in literals for tag in _TAGS.findall(literal)}
    prefixes = {tag for tag in found if tag.startswith("｜")}
    # A prefix of tags is a token, and the tags that contain it are not.
    return tuple(sorted(t for t in found if t in prefixes or not any(p in t for p in prefixes)))


@cache
def tokenizer_for(special: tuple[str, ...]) -> ByteTokenizer:
    return ByteTokenizer(special)


def format_parser(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    shapes: Mapping[str, ToolShape],
    *,
    special: bool,
    thinking: bool = False,
    checks_names: bool = False,
) -> tuple[FormatParser, ByteTokenizer]:
    """Return the parser of two formats. Most servers whose cases these are do not check the names
    of tools, so calls of unknown tools are calls, unless ``checks_names`` is set."""
    tokenizer = tokenizer_for(tags_of(tools, reasoning) if special else ())
    parser = FormatParser(
        tokenizer,
        reasoning=reasoning,
        tools=tools if shapes else None,
        shapes=shapes,
        thinking=thinking,
        passes_unknown=not checks_names,
    )
    return parser, tokenizer


def plain(text: str | None) -> str:
    """Return a text with single spaces, because servers differ in how they trim."""
    return " ".join((text or "").split())


def loaded(text: str) -> Any:
    """Return the value of JSON, or the text if it is none."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text
