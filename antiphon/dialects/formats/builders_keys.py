"""Rows whose calls are a name, and behind it a tag for each key and one for each value."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TypeVar

import msgspec

from .types import START, ParameterForm, ReasoningFormat, State, ToolFormat, Written

__all__ = ["argument_tags", "respelled", "section_tags"]

_Row = TypeVar("_Row", ToolFormat, ReasoningFormat)
#: What the tags of Hunyuan's models end in, so that nobody's text can spell them.
_SUFFIX = re.compile(r"<(?:tool_calls|think)(:\w+)>")


def argument_tags(
    name: str,
    call: tuple[str, str],
    tags: tuple[str, str],
    *,
    mark: str,
    key_end: str | None = None,
    value_end: str | None = None,
    line: str = "{line}",
) -> ToolFormat:
    """The name, then a tag for each key and one for each value. ``tags``: how both begin, as in
    ``<arg_key>`` and ``<arg_value>``; a key without an end of its own ends where its value
    begins. ``line``: what parts them."""
    opening, closing = call
    key, value = tags
    key_end = key.replace("<", "</") if key_end is None else key_end
    value_end = value.replace("<", "</") if value_end is None else value_end
    ends = {opening: "head", closing: START}
    after_key = {key_end: "parameters"} if key_end else {value: "value"}
    between = f"{key_end}{line}{value}" if key_end else value
    return ToolFormat(
        name=name,
        opens={opening: "head"},
        states={
            # Some write JSON all the same.
            "head": State(reads="between", on=ends, peek={"{": "record"}, then="name"),
            "record": State(reads="record", on=ends, then="rest"),
            "rest": State(reads="between", on=ends),
            # Ling 3 writes the line end behind its name as it stands in a source, now and then.
            "name": State(
                reads="name", on=ends | {key: "key", "\\n": "parameters"}, peek={"{": "arguments"}
            ),
            "arguments": State(reads="json", on=ends, then="parameters"),
            "key": State(reads="key", on=ends | after_key),
            "parameters": State(reads="gap", on=ends | {key: "key", value: "value"}),
            "value": State(reads="value", on=ends | {value_end: "parameters"}),
        },
        written=Written(
            before=opening,
            between=line,
            after=closing,
            separator="{line}",
            parameter=_parameter(key, between, value_end + line),
        ),
        mark=mark,
    )


def section_tags(
    name: str,
    tag: tuple[str, str],
    mark: str,
    *,
    named: str = "tool_sep",
    line: str = "{line}",
    lenient: bool = False,
) -> ToolFormat:
    """Keys and values in tags of their own behind the name, all calls in a section. ``tag``: what
    every tag's name begins and ends with. ``named``: the tag behind the name, if there is one.
    ``line``: what parts keys and values. ``lenient``: a call may be JSON instead, and tell what its
    values are."""

    def pair(word: str) -> tuple[str, str]:
        said = f"{tag[0]}{word}{tag[1]}"
        return f"<{said}>", f"</{said}>"

    (first, last), (opening, closing) = pair("tool_calls"), pair("tool_call")
    (key, key_end), (value, value_end) = pair("arg_key"), pair("arg_value")
    (kind, kind_end), behind = pair("arg_type"), pair(named)[0] if named else ""
    head = "head" if lenient else "name"
    ends = {first: "calls", opening: head, closing: "calls", last: START}
    after_name = {behind: "parameters"} if behind else {}
    between = f"{key_end}{line}{value}"
    return ToolFormat(
        name=name,
        opens={first: "calls", opening: head},
        states={
            "calls": State(reads="between", on=ends),
            "name": State(reads="name", on=ends | after_name | {key: "key"}),
            "key": State(reads="key", on=ends | {key_end: "parameters"}),
            "parameters": State(
                reads="gap",
                on=ends | {key: "key", value: "value"} | ({kind: "type"} if lenient else {}),
            ),
            "value": State(reads="value", on=ends | {value_end: "parameters"}),
        }
        | (
            {
                "head": State(reads="between", on=ends, peek={"{": "record"}, then="name"),
                "record": State(reads="record", on=ends, then="calls"),
                "type": State(reads="filler", on=ends | {kind_end: "parameters", value: "value"}),
            }
            if lenient
            else {}
        ),
        written=Written(
            first=first + "{line}",
            before=opening,
            between=behind + line,
            after=closing,
            separator="{line}",
            last="{line}" + last,
            parameter=_parameter(key, between, value_end + line),
        ),
        mark=mark,
    )


def _parameter(key: str, between: str, end: str) -> ParameterForm:
    """Texts and JSON are written alike."""
    return ParameterForm(before=key, text=between, text_end=end, json=between, json_end=end)


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
