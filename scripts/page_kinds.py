"""The module of the web page that says how events change the items of a response. It contains what
``KINDS`` states, so a new item kind needs no change in the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, to_builtins

from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS, ItemKind, TextChannel
from antiphon.wire.tags import tag_of

#: Fields of a progress event that say only to which item it belongs.
_POSITION = {"item_id", "output_index", "sequence_number"}
_HEAD = "// Generated from antiphon/stream/kinds.py by `make docs`. Do not edit.\n"


def kinds_module() -> str:
    """Render the module."""
    kinds = (*KINDS.values(), *OPEN_RESPONSES_KINDS.values())
    channels = [channel for kind in kinds for channel in kind.channels.values()]
    tables = {
        "Delta event → the field of the item to which it appends.": (
            "TEXT_FIELDS",
            {tag_of(each.delta): each.field for each in channels if each.part is None},
        ),
        "Delta event → the list of parts, the index field of the event, a new part, and the field"
        " of the part to which the event appends.": (
            "PART_TEXTS",
            {tag_of(each.delta): _part_text(each) for each in channels if each.part is not None},
        ),
        "Event with a whole part → the list of parts and the index field of the event.": (
            "PARTS",
            dict(part for each in channels for part in _part_events(each)),
        ),
        "Event without fields of its own → the status of the tool's call.": (
            "STATUSES",
            dict(step for kind in kinds for step in _statuses(kind)),
        ),
        "Types of the items that the model writes, without a tool's time between their tokens.": (
            "STREAMED",
            [tag_of(cls) for cls, kind in KINDS.items() if kind.written_by_model and kind.channels],
        ),
    }
    return _HEAD + "".join(
        f"\n/** {comment} */\nexport const {name} = {_literal(value)};\n"
        for comment, (name, value) in tables.items()
    )


def _part_text(channel: TextChannel) -> list[Any]:
    part: type[Struct] | None = channel.part
    assert part is not None
    empty = to_builtins(part(**{channel.field: ""}))
    return [channel.list_field, channel.index_field, empty, channel.field]


def _part_events(channel: TextChannel) -> Iterator[tuple[str, list[str]]]:
    for event in (channel.part_added, channel.part_done):
        if event is not None:
            yield tag_of(event), [channel.list_field, channel.index_field]


def _statuses(kind: ItemKind) -> Iterator[tuple[str, str]]:
    for name, event in kind.progress.items():
        if _POSITION.issuperset(event.__struct_fields__):
            yield tag_of(event), name


def _literal(value: Mapping[str, Any] | list[str]) -> str:
    """Return the value as JavaScript, with one entry a line."""
    if isinstance(value, list):
        return "[\n" + "".join(f"  {json.dumps(each)},\n" for each in value) + "]"
    rows = (f"  {json.dumps(key)}: {json.dumps(each)},\n" for key, each in value.items())
    return "{\n" + "".join(rows) + "}"
