"""Parse ``previous_input_messages``, an extension of vLLM. In this field, a client sends back
earlier messages of the conversation.

Messages in the formats of Chat Completions and harmony are translated to items. Raw messages are
the ``input_messages`` and ``output_messages`` that Antiphon sent in an earlier response. They
contain items and the tokens of these items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, invalid_field, unsupported_value
from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import PreviousMessages
from antiphon.wire.response import RAW_MESSAGE_TYPE

from .errors import invalid_type, invalid_value, json_type_name, missing_parameter
from .fields import convert, read_array, read_object, read_objects, read_string, read_tag
from .items import read_items
from .json_body import BodyLimits

#: Roles whose messages are ignored: each request supplies its own instructions.
_IGNORED_ROLES = frozenset({"system", "developer"})
_ROLES = ("assistant", "developer", "system", "tool", "user")
_FUNCTION_PREFIX = "functions."
#: Built-in tools of gpt-oss.
_BUILTIN_TOOLS = frozenset({"browser", "container", "python"})
#: Items are accepted, too, if they are results of calls.
_RESULT_SUFFIX = "_call_output"
_CALLS = (it.FunctionCall, it.CustomToolCall)
_RESULTS = (it.FunctionCallOutput, it.CustomToolCallOutput)
#: One response has the raw messages of its prompt and of its output. The first message of each side
#: contains all items of this side.
_MAX_SIDES = 2


class _RawMessage(Struct, frozen=True, kw_only=True):
    """The fields ``tokens`` and ``tokenizer`` of a raw message. A raw message is an entry of
    ``input_messages`` or ``output_messages`` in an earlier response. The client sends it back, so
    that the new prompt can contain the same token ids. ``read_items`` reads the other field,
    ``items``."""

    tokens: tuple[Annotated[int, Meta(ge=0, lt=2**32)], ...] = ()
    tokenizer: str | None = None


def read_previous_messages(raw: object, path: str, limits: BodyLimits) -> PreviousMessages:
    """Translate the messages in ``previous_input_messages`` to items. Raises ``InvalidRequest``.

    A tool result is matched with its call by id. Harmony messages have no ids, so their results are
    matched with the calls in order.
    """
    messages = read_array(raw, path, limits.items)
    raw_count = next(
        (at for at, message in enumerate(messages) if not _is_raw(message)), len(messages)
    )
    previous = _read_raw_messages(messages[:raw_count], path, limits)
    reader = _PreviousMessageReader(previous.items, limits)
    items = [
        item
        for at, message in enumerate(messages[raw_count:], raw_count)
        for item in reader.items(read_object(message, f"{path}[{at}]"), f"{path}[{at}]")
    ]
    return replace(previous, items=(*previous.items, *items))


def _is_raw(message: object) -> bool:
    return isinstance(message, dict) and message.get("type") == RAW_MESSAGE_TYPE


def _read_raw_messages(messages: list[Any], path: str, limits: BodyLimits) -> PreviousMessages:
    """Read the ``input_messages`` and ``output_messages`` that Antiphon sent in an earlier
    response."""
    items: list[it.Item] = []
    token_ids: list[int] = []
    tokenizers = set()
    side_count = 0
    for at, message in enumerate(messages):
        where = f"{path}[{at}]"
        has_items = "items" in message
        side_count += has_items
        if side_count > _MAX_SIDES:
            raise invalid_field(
                where,
                "the raw messages belong to several responses. Send only the"
                " raw messages of the last response; they contain the whole conversation.",
            )
        if has_items:
            items += read_items(message["items"], f"{where}.items", limits)
        elif at == 0:
            raise missing_parameter(f"{where}.items")
        raw = convert(message, _RawMessage, where)
        token_ids += raw.tokens
        tokenizers.add(raw.tokenizer)
    if len(tokenizers) != 1:
        return PreviousMessages(items=tuple(items))
    return PreviousMessages(
        items=tuple(items), token_ids=tuple(token_ids), tokenizer=tokenizers.pop()
    )


class _PreviousMessageReader:
    """Translates the messages of ``previous_input_messages`` to items, one by one. Remembers the
    tool calls that have no result yet, to match later results with them.

    ``earlier``: the items of raw messages, whose calls may have no results yet.
    """

    def __init__(self, earlier: Iterable[it.Item], limits: BodyLimits) -> None:
        self._limits = limits
        self._open: list[str] = []
        self._count = 0
        for item in earlier:
            self._note(item)

    def items(self, message: JsonObject, path: str) -> Iterator[it.Item]:
        if isinstance(kind := message.get("type"), str) and kind.endswith(_RESULT_SUFFIX):
            (item,) = read_items([message], path, self._limits)
            self._note(item)
            yield item
            return
        author = message.get("author")
        fields = {**message, **author} if isinstance(author, dict) else message
        role = read_tag(fields, path, _ROLES, "role")
        if role in _IGNORED_ROLES:
            return
        _refuse_builtin_tools(fields, path)
        if role == "user":
            yield it.Message(role="user", content=_user_parts(fields, f"{path}.content"))
            return
        text = _read_text(fields.get("content"), f"{path}.content")
        if role == "tool":
            yield it.FunctionCallOutput(call_id=self._answered(fields, path), output=text)
        else:
            yield from self._said(fields, text, path)

    def _said(self, fields: JsonObject, text: str, path: str) -> Iterator[it.Item]:
        recipient = fields.get("recipient")
        if isinstance(recipient, str) and recipient.startswith(_FUNCTION_PREFIX):
            name = recipient.removeprefix(_FUNCTION_PREFIX)
            yield it.FunctionCall(call_id=self._called(None), name=name, arguments=text)
            return
        if fields.get("channel") == "analysis":
            yield _reasoning(text)
            return
        if isinstance(before := fields.get("reasoning_content"), str) and before:
            yield _reasoning(before)
        if text:
            yield it.Message(role="assistant", content=(it.OutputText(text=text),))
        for call, at in read_objects(fields.get("tool_calls", []), f"{path}.tool_calls", 128):
            yield self._call(call, at)

    def _call(self, call: JsonObject, path: str) -> it.Item:
        function = read_object(call.get("function"), f"{path}.function")
        id = call.get("id")
        return it.FunctionCall(
            call_id=self._called(id if isinstance(id, str) else None),
            name=read_string(function, "name", f"{path}.function"),
            arguments=read_string(function, "arguments", f"{path}.function"),
        )

    def _note(self, item: it.Item) -> None:
        """Remember a call, or forget the call to which a result belongs."""
        if isinstance(item, _CALLS) and item.call_id:
            self._open.append(item.call_id)
        elif isinstance(item, _RESULTS) and item.call_id in self._open:
            self._open.remove(item.call_id)

    def _called(self, id: str | None) -> str:
        self._count += 1
        self._open.append(id or f"call_{self._count}")
        return self._open[-1]

    def _answered(self, fields: JsonObject, path: str) -> str:
        id = fields.get("tool_call_id")
        if isinstance(id, str) and id in self._open:
            self._open.remove(id)
            return id
        if id is None and self._open:
            return self._open.pop(0)
        raise InvalidRequest(
            "This tool message does not match an earlier tool call.", param=path, code=None
        )


def _reasoning(text: str) -> it.Item:
    return it.Reasoning(summary=(), content=(it.ReasoningText(text=text),))


def _read_text(raw: object, path: str) -> str:
    """Return the text of a value: the value itself if it is a string, or the texts of its parts
    joined by newlines."""
    if raw is None or isinstance(raw, str):
        return raw or ""
    parts = read_objects([raw] if isinstance(raw, dict) else raw, path, 1000)
    return "\n".join(_part_text(part, at) for part, at in parts)


def _part_text(part: JsonObject, path: str) -> str:
    """Return the text of a part. Raises ``InvalidRequest`` for a part without text."""
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if text is None and isinstance(kind, str):
        raise invalid_value(f"{path}.type", kind, ("text",))
    if not isinstance(text, str):
        raise invalid_type(f"{path}.text", "a string", json_type_name(text))
    return text


def _user_parts(fields: JsonObject, path: str) -> tuple[it.Part, ...]:
    """Return the content of a user's message: one text, or texts and images."""
    raw = fields.get("content")
    if not isinstance(raw, list) or not any(map(_is_image, raw)):
        return (it.InputText(text=_read_text(raw, path)),)
    return tuple(
        _image(part, at) if _is_image(part) else it.InputText(text=_part_text(part, at))
        for part, at in read_objects(raw, path, 1000)
    )


def _is_image(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image_url", "input_image")


def _image(part: JsonObject, path: str) -> it.InputImage:
    """Parse an image part in the format of Chat Completions or of the Responses API."""
    source = part.get("image_url")
    fields = {**part, **source} if isinstance(source, dict) else {**part, "url": source}
    if not isinstance(fields.get("url"), str):
        raise missing_parameter(f"{path}.image_url")
    image = {"image_url": fields["url"], "detail": fields.get("detail", "auto")}
    return convert(image, it.InputImage, path)


def _refuse_builtin_tools(fields: JsonObject, path: str) -> None:
    """Refuse calls and results of gpt-oss's built-in tools. They cannot be translated to calls of
    the request's functions."""
    for field in ("recipient", "name"):
        value = fields.get(field)
        if isinstance(value, str) and value.partition(".")[0] in _BUILTIN_TOOLS:
            if field == "name" and fields.get("role") != "tool":
                continue
            raise unsupported_value(
                f"{path}.{field}",
                f"'{path}.{field}' names the built-in tool '{value}', whose"
                " messages cannot be sent back. Use 'previous_response_id' or items instead.",
            )
