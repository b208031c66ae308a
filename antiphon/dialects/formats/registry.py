"""The lookup of formats: by name, by the names of other servers, by a model's chat template."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from antiphon.errors import SetupError

from .reasoning_formats import REASONING
from .tool_formats import TOOLS
from .types import ReasoningFormat, ToolFormat

__all__ = ["FOUND", "HARMONY", "SHIPPED", "Formats", "respelled"]

_Row = TypeVar("_Row", ToolFormat, ReasoningFormat)
#: What stands in the table of no format: gpt-oss is spoken to in a dialect of its own.
HARMONY = frozenset({"harmony", "openai", "openai_gptoss", "gpt_oss"})
#: What asks for the format that the model's template tells.
FOUND = frozenset({"auto", "hf", "response_template"})
#: What the tags of Hunyuan's models end in, so that nobody's text can spell them.
_SUFFIX = re.compile(r"<(?:tool_calls|think)(:\w+)>")


class Formats(Struct, frozen=True, kw_only=True):
    """The formats there are, the most telling marks first."""

    tools: Mapping[str, ToolFormat]
    reasoning: Mapping[str, ReasoningFormat]

    def detect(self, template: str, special: Collection[str] = ()) -> tuple[str | None, str | None]:
        """The names of the reasoning format and the tool format of a model: by its chat template,
        else by its special tokens. A template that knows neither tools nor calls has no tool
        format."""
        texts = (template, " ".join(special))
        knows = "tools" in template or "tool_calls" in template
        return (_first(self.reasoning, texts), _first(self.tools, texts) if knows else None)

    def tool_format(self, name: str) -> ToolFormat | None:
        """The row of that name, or the one that others call so, however they spell it; None for
        ``""``. Raises ``SetupError``."""
        return _named(self.tools, TOOLS, name, "tool_format")

    def reasoning_format(self, name: str) -> ReasoningFormat | None:
        """The same for thinking."""
        return _named(self.reasoning, REASONING, name, "reasoning_format")


SHIPPED = Formats(tools=TOOLS, reasoning=REASONING)

#: Names that stand for no format: all is text.
_NONE = ("", "none", "identity")


def _named(
    table: Mapping[str, _Row], shipped: Mapping[str, _Row], name: str, option: str
) -> _Row | None:
    if name in _NONE:
        return None
    said = re.sub(r"[\W_]+", "_", name.lower())
    if name not in table:
        name = _row_of(shipped, said) or name
    if said in HARMONY:
        raise SetupError(f'{option}: {name} is no format but a dialect: dialect = "harmony"')
    if name not in table:
        raise SetupError(f"{option}: there is no {name!r} (there are: {', '.join(sorted(table))})")
    return table[name]


def _row_of(table: Mapping[str, ToolFormat | ReasoningFormat], name: str) -> str | None:
    """The name of the row that has this name or alias."""
    return next((row.name for row in table.values() if name in (row.name, *row.aliases)), None)


def _first(table: Mapping[str, _Row], texts: tuple[str, ...]) -> str | None:
    """The first row whose mark stands in the first of the texts that has any."""
    found = (
        name
        for text in texts
        for name, row in table.items()
        if row.mark and re.search(row.mark, text)
    )
    return next(found, None)


def respelled(row: _Row, special: Collection[str]) -> _Row:
    """The row with the suffix that its tags have in this vocabulary, where they have one."""
    tags = row.opens if isinstance(row, ToolFormat) else row.open
    own, found = (
        next((tag[1] for name in names if (tag := _SUFFIX.fullmatch(name))), "")
        for names in (tags, special)
    )
    if not own or not found:
        return row
    text = msgspec.json.encode(row).replace(own.encode(), found.encode())
    return msgspec.json.decode(text, type=type(row))
