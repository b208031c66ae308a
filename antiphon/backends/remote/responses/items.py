"""Items of a Responses server as it sends them: read for what they say, and for what they found.

Nothing here raises, whatever a server sends. It knows no streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.backends.base import upstream_usage
from antiphon.errors import InvalidRequest
from antiphon.stream.deltas import Channel
from antiphon.stream.kinds import KINDS
from antiphon.wire import items as it
from antiphon.wire.parsing.items import read_items
from antiphon.wire.response import Usage

__all__ = [
    "caller_of",
    "found",
    "logprobs_of",
    "parts_of",
    "read_item",
    "text_fields",
    "usage_of",
    "whole_texts",
]

Json = dict[str, Any]


def usage_of(told: Any, given: int, said: int) -> Usage:
    """What was used; ``given`` and ``said`` are estimates for an upstream that does not tell."""
    told = told if isinstance(told, Mapping) else {}
    given = _count(told, "input_tokens", given)
    said = _count(told, "output_tokens", said)
    cached = _count(told.get("input_tokens_details"), "cached_tokens", 0)
    thought = _count(told.get("output_tokens_details"), "reasoning_tokens", 0)
    return upstream_usage(given, said, cached_tokens=cached, reasoning_tokens=thought)


def logprobs_of(told: list[Any]) -> tuple[it.Logprob, ...]:
    """Those that are as they should be."""
    try:
        return msgspec.convert(told, tuple[it.Logprob, ...])
    except msgspec.ValidationError:
        return ()


def _count(told: Any, name: str, otherwise: int) -> int:
    value = told.get(name) if isinstance(told, Mapping) else None
    return int(value) if isinstance(value, int) else otherwise


def caller_of(raw: Json) -> it.Caller | UnsetType:
    """Who made the call, if that is one we know."""
    try:
        return cast(it.Caller, msgspec.convert(raw.get("caller"), cast(Any, it.Caller)))
    except msgspec.ValidationError:
        return UNSET


def read_item(raw: Json) -> it.Item | None:
    """The item, if it is of a kind that is known here."""
    try:
        known = raw if caller_of(raw) is not UNSET else {**raw, "caller": None}
        return read_items([{"id": "", **known}], "output")[0]
    except InvalidRequest:
        return None


#: Type of an item → its fields that are written as text streams.
_WRITTEN: Mapping[str, tuple[str, ...]] = {
    str(cls.__struct_config__.tag): tuple(
        stem.field for stem in kind.channels.values() if stem.part is None
    )
    for cls, kind in KINDS.items()
}


def text_fields(item: it.Item) -> Iterable[str]:
    """The fields that are written as text streams."""
    return (stem.field for stem in KINDS[type(item)].channels.values() if stem.part is None)


def found(raw: Json) -> Json:
    """What a hosted tool found: the fields of its item, without what names it and what was said."""
    item = read_item(raw)
    if item is None:
        return {}
    said = {"id", *text_fields(item)}
    values = {field: getattr(item, field) for field in item.__struct_fields__ if field not in said}
    return {field: value for field, value in values.items() if value is not UNSET}


def whole_texts(raw: Json) -> Iterable[tuple[Channel, str]]:
    """All that an item says when it is done."""
    content, summary = parts_of(raw.get("content")), parts_of(raw.get("summary"))
    reads: tuple[tuple[Channel, list[Any]], ...] = (
        ("text", [part.get("text") for part in content]),
        ("refusal", [part.get("refusal") for part in content]),
        ("summary", [part.get("text") for part in summary]),
        ("text", [raw.get(field) for field in _WRITTEN.get(str(raw.get("type")), ())]),
    )
    for channel, found in reads:
        if text := "\n\n".join(each for each in found if isinstance(each, str) and each):
            yield channel, text


def parts_of(value: Any) -> list[Json]:
    """Those of a list that are objects."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
