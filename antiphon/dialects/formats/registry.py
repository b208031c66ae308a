"""Find a format by its name, by the name another server gives it, or by a model's chat template."""

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

__all__ = ["DETECTION_NAMES", "HARMONY_NAMES", "SHIPPED", "Formats", "with_vocabulary_suffix"]

_Row = TypeVar("_Row", ToolFormat, ReasoningFormat)
#: Names of the harmony format. It has no row: gpt-oss has a dialect of its own.
HARMONY_NAMES = frozenset({"harmony", "openai", "openai_gptoss", "gpt_oss"})
#: Names that request detection from the model's chat template.
DETECTION_NAMES = frozenset({"auto", "hf", "response_template"})
#: The suffix of Hunyuan's tags. It is specific to a vocabulary, so that no user's text contains it.
_SUFFIX = re.compile(r"<(?:tool_calls|think)(:\w+)>")


class Formats(Struct, frozen=True, kw_only=True):
    """The known formats by name, the ones with the most specific marks first."""

    tools: Mapping[str, ToolFormat]
    reasoning: Mapping[str, ReasoningFormat]

    def extend(self, others: Formats) -> Formats:
        """Return these formats, then ``others``. One of these replaces another of its name."""
        return Formats(
            tools={**self.tools, **_without(others.tools, self.tools)},
            reasoning={**self.reasoning, **_without(others.reasoning, self.reasoning)},
        )

    def detect(self, template: str, special: Collection[str] = ()) -> tuple[str | None, str | None]:
        """Return the names of a model's reasoning format and tool format, None where there is none.

        The chat template decides. If no mark matches it, the special tokens decide. A template that
        mentions neither tools nor calls has no tool format."""
        texts = (template, " ".join(special))
        has_tools = "tools" in template or "tool_calls" in template
        return (
            _first_match(self.reasoning, texts),
            _first_match(self.tools, texts) if has_tools else None,
        )

    def tool_format(self, name: str) -> ToolFormat | None:
        """Return the row with this name or alias, in any spelling; None for ``""``.

        Raises ``SetupError``."""
        return _find_row(self.tools, TOOLS, name, "tool_format")

    def reasoning_format(self, name: str) -> ReasoningFormat | None:
        """Return the row with this name or alias, in any spelling; None for ``""``.

        Raises ``SetupError``."""
        return _find_row(self.reasoning, REASONING, name, "reasoning_format")


SHIPPED = Formats(tools=TOOLS, reasoning=REASONING)

#: Names for the absence of a format: the whole text is the answer.
_NO_FORMAT = ("", "none", "identity")


def _find_row(
    table: Mapping[str, _Row], shipped: Mapping[str, _Row], name: str, option: str
) -> _Row | None:
    if name in _NO_FORMAT:
        return None
    normalized = re.sub(r"[\W_]+", "_", name.lower())
    if name not in table:
        name = _resolve_alias(shipped, normalized) or _resolve_alias(table, normalized) or name
    if normalized in HARMONY_NAMES:
        raise SetupError(f'{option}: {name} is a dialect, not a format; set dialect = "harmony"')
    if name not in table:
        raise SetupError(f"{option}: unknown format {name!r} (known: {', '.join(sorted(table))})")
    return table[name]


def _without(table: Mapping[str, _Row], names: Collection[str]) -> dict[str, _Row]:
    return {name: row for name, row in table.items() if name not in names}


def _resolve_alias(table: Mapping[str, ToolFormat | ReasoningFormat], name: str) -> str | None:
    """Return the name of the row that has this name or alias."""
    return next((row.name for row in table.values() if name in (row.name, *row.aliases)), None)


def _first_match(table: Mapping[str, _Row], texts: tuple[str, ...]) -> str | None:
    """Return the name of the first row whose mark matches. Earlier texts win over earlier rows."""
    matches = (
        name
        for text in texts
        for name, row in table.items()
        if row.mark and re.search(row.mark, text)
    )
    return next(matches, None)


def with_vocabulary_suffix(row: _Row, special: Collection[str]) -> _Row:
    """Return the row with its tags' suffix replaced by the one this vocabulary uses, if it has
    one."""
    tags = row.opens if isinstance(row, ToolFormat) else row.open
    row_suffix, suffix = (
        next((tag[1] for name in names if (tag := _SUFFIX.fullmatch(name))), "")
        for names in (tags, special)
    )
    if not row_suffix or not suffix:
        return row
    text = msgspec.json.encode(row).replace(row_suffix.encode(), suffix.encode())
    return msgspec.json.decode(text, type=type(row))
