"""Find a tool format or reasoning format by its name, by the name that another server gives it, or
by a model's chat template."""

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
#: Names of the harmony format. It is in no table, because gpt-oss has a dialect of its own.
HARMONY_NAMES = frozenset({"harmony", "openai", "openai_gptoss", "gpt_oss"})
#: Names that request detection from the model's chat template.
DETECTION_NAMES = frozenset({"auto", "hf", "response_template"})
#: The suffix of Hunyuan's tags. Each vocabulary has its own suffix, so that no user's text contains
#: the tags.
_SUFFIX = re.compile(r"<(?:tool_calls|think)(:\w+)>")


class Formats(Struct, frozen=True, kw_only=True):
    """The known tool formats and reasoning formats by name. Detection takes the first format
    whose ``mark``, a regex, matches the model's chat template. So formats with more specific marks
    come first."""

    tools: Mapping[str, ToolFormat]
    reasoning: Mapping[str, ReasoningFormat]

    def extend(self, others: Formats) -> Formats:
        """Return a table with these formats, followed by the formats in ``others``. A format of
        ``others`` is left out if ``self`` has a format of the same name."""
        return Formats(
            tools={**self.tools, **_without(others.tools, self.tools)},
            reasoning={**self.reasoning, **_without(others.reasoning, self.reasoning)},
        )

    def detect(self, template: str, special: Collection[str] = ()) -> tuple[str | None, str | None]:
        """Detect a model's formats. Returns the name of its reasoning format and the name of its
        tool format. A name is None if the model has no such format.

        ``template``: the model's chat template. ``special``: the model's special tokens. Each
        format has a regex, its ``mark``. A format is detected if its mark matches the template. If
        no mark matches the template, a mark that matches one of the special tokens decides. A
        template that mentions neither tools nor calls has no tool format.
        """
        texts = (template, " ".join(special))
        has_tools = "tools" in template or "tool_calls" in template
        return (
            _first_match(self.reasoning, texts),
            _first_match(self.tools, texts) if has_tools else None,
        )

    def tool_format(self, name: str) -> ToolFormat | None:
        """Return the tool format with this name or alias. Case and punctuation do not matter.

        Returns None for ``""``, ``none`` and ``identity``. Raises ``SetupError`` for an unknown
        name.
        """
        return _find_row(self.tools, TOOLS, name, "tool_format")

    def reasoning_format(self, name: str) -> ReasoningFormat | None:
        """Return the reasoning format with this name or alias. Case and punctuation do not matter.

        Returns None for ``""``, ``none`` and ``identity``. Raises ``SetupError`` for an unknown
        name.
        """
        return _find_row(self.reasoning, REASONING, name, "reasoning_format")


SHIPPED = Formats(tools=TOOLS, reasoning=REASONING)

#: Names that mean "no format": the model's whole text is the answer.
_NO_FORMAT = ("", "none", "identity")


def _find_row(
    table: Mapping[str, _Row], shipped: Mapping[str, _Row], name: str, option: str
) -> _Row | None:
    """Find the format with this name or alias in ``table``. An alias of a built-in format
    (``shipped``) wins over the same alias of another format.

    ``option``: the name of the setting that contains ``name``, for error messages. Returns None for
    the names that mean no format, such as ``none``. Raises ``SetupError`` for an unknown name.
    """
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
    """Return the name of the format in ``table`` that has this name or alias, or None."""
    return next((row.name for row in table.values() if name in (row.name, *row.aliases)), None)


def _first_match(table: Mapping[str, _Row], texts: tuple[str, ...]) -> str | None:
    """Return the name of the first format in ``table`` whose ``mark`` (a regex) matches a text. The
    texts are tried one after the other: all formats are compared with a text before the next text
    is tried. Returns None if no mark matches any text."""
    matches = (
        name
        for text in texts
        for name, row in table.items()
        if row.mark and re.search(row.mark, text)
    )
    return next(matches, None)


def with_vocabulary_suffix(row: _Row, special: Collection[str]) -> _Row:
    """Replace the suffix in a format's tags with the suffix that the model's vocabulary uses, as in
    ``<think:SUFFIX>``. ``row``: the format. ``special``: the model's special tokens.

    Only Hunyuan's tags have a suffix. Returns ``row`` unchanged if its tags or the vocabulary's
    tags have no suffix.
    """
    tags = row.opens if isinstance(row, ToolFormat) else row.open
    row_suffix, suffix = (
        next((tag[1] for name in names if (tag := _SUFFIX.fullmatch(name))), "")
        for names in (tags, special)
    )
    if not row_suffix or not suffix:
        return row
    text = msgspec.json.encode(row).replace(row_suffix.encode(), suffix.encode())
    return msgspec.json.decode(text, type=type(row))
