"""Read the items, usage and log-probabilities that an upstream server sends in the format of the
Responses API.

Malformed data is ignored: no function here raises an exception because of it.
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
from antiphon.wire.json_types import JsonObject
from antiphon.wire.parsing.items import read_items
from antiphon.wire.response import Usage
from antiphon.wire.tags import tag_of


def usage_of(reported: object, input_tokens: int, output_tokens: int) -> Usage:
    """Return the token usage of a reply.

    ``reported``: the usage that the upstream reports. ``input_tokens``, ``output_tokens``:
    estimates, which are used if the upstream does not report these numbers.
    """
    reported = reported if isinstance(reported, Mapping) else {}
    input_tokens = _count(reported, "input_tokens", input_tokens)
    output_tokens = _count(reported, "output_tokens", output_tokens)
    cached_tokens = _count(reported.get("input_tokens_details"), "cached_tokens", 0)
    reasoning_tokens = _count(reported.get("output_tokens_details"), "reasoning_tokens", 0)
    return upstream_usage(
        input_tokens, output_tokens, cached_tokens=cached_tokens, reasoning_tokens=reasoning_tokens
    )


def logprobs_of(reported: list[Any]) -> tuple[it.Logprob, ...]:
    """Return the log-probabilities of an event, or an empty tuple if they are malformed."""
    try:
        return msgspec.convert(reported, tuple[it.Logprob, ...])
    except msgspec.ValidationError:
        return ()


def _count(reported: object, name: str, default: int) -> int:
    value = reported.get(name) if isinstance(reported, Mapping) else None
    return int(value) if isinstance(value, int) else default


def caller_of(raw: JsonObject) -> it.Caller | UnsetType:
    """Return the caller of a tool call (the model or a program). Return UNSET if it is missing or
    of an unknown kind."""
    try:
        return cast(it.Caller, msgspec.convert(raw.get("caller"), cast(Any, it.Caller)))
    except msgspec.ValidationError:
        return UNSET


def read_item(raw: JsonObject) -> it.Item | None:
    """Parse an item. Return None if its type is unknown or its fields are invalid."""
    try:
        readable = raw if caller_of(raw) is not UNSET else {**raw, "caller": None}
        return read_items([{"id": "", **readable}], "output")[0]
    except InvalidRequest:
        return None


#: Type of an item → its fields that are streamed as text.
_TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    tag_of(cls): tuple(stem.field for stem in kind.channels.values() if stem.part is None)
    for cls, kind in KINDS.items()
}


def text_fields(item: it.Item) -> Iterable[str]:
    """Return the names of the item's fields that are streamed as text."""
    return (stem.field for stem in KINDS[type(item)].channels.values() if stem.part is None)


def completed_tool_fields(raw: JsonObject) -> JsonObject:
    """Return the fields of a completed item of a hosted tool, such as its results. Two kinds of
    fields are left out: the upstream's ids, because Antiphon assigns its own ids, and the fields
    that are streamed as text, because earlier deltas contain them."""
    item = read_item(raw)
    if item is None:
        return {}
    excluded = {"id", "call_id", *text_fields(item)}
    values = {
        field: getattr(item, field) for field in item.__struct_fields__ if field not in excluded
    }
    return {field: value for field, value in values.items() if value is not UNSET}


def whole_texts(raw: JsonObject) -> Iterable[tuple[Channel, str]]:
    """Yield the texts of a completed item, each with its channel (the kind of text).

    The parts of one channel are joined to one text. If a reasoning item has a text and a summary,
    the parts of the summary are yielded as separate texts, as in a stream.
    """
    content, summary = parts_of(raw.get("content")), parts_of(raw.get("summary"))
    fields = _TEXT_FIELDS.get(str(raw.get("type")), ())
    reads: tuple[tuple[Channel, list[str]], ...] = (
        ("text", _texts(part.get("text") for part in content)),
        ("refusal", _texts(part.get("refusal") for part in content)),
        ("summary", _texts(part.get("text") for part in summary)),
        ("text", _texts(raw.get(field) for field in fields)),
    )
    has_text = any(texts for channel, texts in reads if channel == "text")
    for channel, texts in reads:
        if channel == "summary" and has_text:
            yield from ((channel, text) for text in texts)
        elif texts:
            yield channel, "\n\n".join(texts)


def _texts(values: Iterable[object]) -> list[str]:
    return [value for value in values if isinstance(value, str) and value]


def parts_of(value: object) -> list[JsonObject]:
    """Return the elements of a list that are JSON objects. Return an empty list if ``value`` is not
    a list."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
