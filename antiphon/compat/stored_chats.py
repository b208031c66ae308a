"""Stored chat completions, which are stored responses with an id of a certain form: their ids, the
messages of their requests, and their new metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType, to_builtins

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.object_ids import STORED_CHAT_ID
from antiphon.wire.parsing.fields import require
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from antiphon.wire.parsing.requests import read_metadata
from antiphon.wire.resources.conversations import Metadata

from .chat_response import ChatToolCall, message_fields

_PREFIX = "chatcmpl-"


class UpdateChatCompletion(Struct, frozen=True, kw_only=True):
    """The body of ``POST /chat/completions/{id}``: the new metadata. Null removes all metadata."""

    metadata: Metadata | None


class StoredChatMessage(Struct, frozen=True, kw_only=True):
    """A message of the request of a stored chat completion. ``content``: its text.
    ``content_parts``: its parts, if it has other parts than one text."""

    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    content_parts: tuple[JsonObject, ...] | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ChatToolCall, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


def stored_response_id(completion_id: str) -> str | None:
    """Return the id of the response that is stored for a chat completion. Returns None for a text
    that is not the id of a chat completion."""
    if not completion_id.startswith(_PREFIX):
        return None
    return f"{STORED_CHAT_ID}_{completion_id.removeprefix(_PREFIX)}"


def parse_chat_metadata(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> dict[str, str]:
    """Parse a body of the type ``UpdateChatCompletion``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits, nulls=True)
    require(raw, "", "metadata")
    return {} if raw["metadata"] is None else read_metadata(raw["metadata"])


def stored_messages(input: Sequence[it.Item]) -> list[StoredChatMessage]:
    """Translate the input items of a response back to the messages of its request. Reasoning, text
    and calls of the model that follow one another are one message."""
    groups: list[list[it.Item]] = []
    last = None
    for item in input:
        place = _place(item)
        if place is None or last is None or place < last or place == last == _TEXT:
            groups.append([])
        groups[-1].append(item)
        last = place
    return [
        _message(items[0])
        if _place(items[0]) is None
        else StoredChatMessage(id=items[0].id, role="assistant", **message_fields(items))
        for items in groups
    ]


#: The order in which the items of one message of the model follow one another.
_REASONING, _TEXT, _CALL = range(3)


def _place(item: it.Item) -> int | None:
    """Return the place of an item in a message of the model. Returns None for other items."""
    if item.is_reasoning:
        return _REASONING
    if item.role == "assistant":
        return _TEXT
    return _CALL if it.is_model_call(item) else None


def _message(item: it.Item) -> StoredChatMessage:
    if isinstance(item, it.FunctionCallOutput | it.CustomToolCallOutput):
        output = item.output
        parts = (it.InputText(text=output),) if isinstance(output, str) else output
        return _with_content(item.id, "tool", parts, tool_call_id=item.call_id)
    return _with_content(item.id, item.role, item.message_parts)


def _with_content(
    id: str, role: str, parts: Sequence[it.Part], *, tool_call_id: str | UnsetType = UNSET
) -> StoredChatMessage:
    texts = [part.text for part in parts if isinstance(part, it.InputText)]
    is_plain = len(parts) == len(texts) <= 1
    return StoredChatMessage(
        id=id,
        role=role,  # type: ignore[arg-type]
        content="".join(texts) if is_plain or texts else None,
        content_parts=None if is_plain else tuple(map(_part, parts)),
        tool_call_id=tool_call_id,
    )


def _part(part: it.Part) -> JsonObject:
    """Translate a part of an input item back to a part of a chat message."""
    fields: JsonObject = to_builtins(part)
    kind = fields.pop("type")
    match part:
        case it.InputText():
            return {"type": "text", "text": part.text}
        case it.InputImage(image_url=url):
            image = {"url": url if isinstance(url, str) else "", "detail": part.detail}
            return {"type": "image_url", "image_url": image}
        case it.InputFile():
            return {"type": "file", "file": fields}
        case it.InputVideo():
            return {"type": "video_url", "video_url": {"url": part.video_url}}
        case _:
            return {"type": kind, **fields}
