"""Parse items and their parts.

Clients send items without a type or an id, with nulls, with unknown keys, and with content as a
string. The parser normalizes all of these to the types of ``wire.items``. A table selects the class
by ``type``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.wire import items as it
from antiphon.wire.json_types import JsonObject

from .errors import duplicate_item, invalid_type, invalid_value, json_type_name, missing_parameter
from .fields import classes_by_tag, convert, drop_nulls, read_array, read_object, read_tag
from .json_body import DEFAULT_LIMITS, BodyLimits
from .text_formats import UPDATE_FORMATS, read_format
from .tools import read_tools

_ITEMS: Mapping[str, type[it.Item]] = classes_by_tag(it.Item.__args__)
_PARTS: Mapping[str, type[it.Part]] = classes_by_tag(it.Part.__args__)
_OUTPUT_CONTENT_PARTS = ("output_text", "refusal", "text", "summary_text", "reasoning_text")
_INPUT_CONTENT_PARTS = (
    "input_text",
    "input_image",
    "input_file",
    "input_audio",
    "input_video",
    "text",
)
#: Role → part types that are allowed in its messages. Other roles occur in listings only.
_ROLE_PARTS: Mapping[str, tuple[str, ...]] = {
    "user": _INPUT_CONTENT_PARTS,
    "assistant": _OUTPUT_CONTENT_PARTS,
    "system": _INPUT_CONTENT_PARTS,
    "developer": _INPUT_CONTENT_PARTS,
}
#: Part type → fields of which at least one is required.
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "input_image": ("image_url", "file_id"),
    "input_file": ("file_data", "file_id", "file_url"),
}
#: Types listed in the error for an invalid part of an assistant message, as OpenAI lists them.
_NAMED_OUTPUT_PARTS = ("output_text", "refusal")
_AGENT_PARTS = ("input_text", "input_image", "encrypted_content")
_TOOL_OUTPUT_PARTS = ("input_text", "input_image", "input_file", "input_video")


def read_items(raw: object, path: str, limits: BodyLimits = DEFAULT_LIMITS) -> tuple[it.Item, ...]:
    """Read the items of the JSON array ``raw``. ``path``: where the request contains the array. The
    path appears in errors. Raises ``InvalidRequest``."""
    items = read_array(raw, path, limits.items)
    read: list[it.Item] = []
    ids: set[str] = set()
    for index, each in enumerate(items):
        item = _read_item(each, f"{path}[{index}]", limits)
        if item.id in ids and item.id_names_call:
            item = replace(item, id="", call_id=item.named_call)
        if item.id and item.id in ids:
            raise duplicate_item(path, item.id)
        ids.add(item.id)
        read.append(item)
    return tuple(read)


def _read_item(raw: object, path: str, limits: BodyLimits) -> it.Item:
    fields = read_object(raw, path)
    if "type" not in fields and (implied := _implied_type(fields)):
        fields["type"] = implied
    cls = _ITEMS[read_tag(fields, path, _ITEMS)]
    if (normalize := _NORMALIZERS.get(cls)) is not None:
        normalize(fields, path, limits)
    item = convert(fields, cls, path)
    if cls is it.ItemReference and not item.id:
        raise missing_parameter(f"{path}.id")
    if item.id_names_call and not item.named_call:
        raise missing_parameter(f"{path}.call_id")
    return item


def _implied_type(fields: JsonObject) -> str | None:
    """Return the type of an item that was sent without ``type``. Return None if its fields do not
    show the type."""
    return "message" if "role" in fields else "item_reference" if "id" in fields else None


def _normalize_message(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    role = read_tag(fields, path, _ROLE_PARTS, "role")
    content = fields.get("content")
    if content is None:
        raise missing_parameter(f"{path}.content")
    is_assistant = role == "assistant"
    if isinstance(content, str):
        fields["content"] = (
            it.OutputText(text=content) if is_assistant else it.InputText(text=content),
        )
        return
    allowed = _ROLE_PARTS[role]
    named = _NAMED_OUTPUT_PARTS if is_assistant else allowed
    parts = read_array(content, f"{path}.content", limits.parts, "a string or an array")
    fields["content"] = _read_parts(parts, f"{path}.content", allowed, named)


def _read_parts(
    raw: list[Any], path: str, allowed: tuple[str, ...], named: tuple[str, ...]
) -> tuple[it.Part, ...]:
    return tuple(
        _read_part(part, f"{path}[{index}]", allowed, named) for index, part in enumerate(raw)
    )


def read_part(raw: object, path: str, allowed: tuple[str, ...]) -> it.Part:
    """Parse one message part. Its type must be in ``allowed``. Raises ``InvalidRequest``."""
    return _read_part(raw, path, allowed, allowed)


def _read_part(raw: object, path: str, allowed: tuple[str, ...], named: tuple[str, ...]) -> it.Part:
    fields = read_object(raw, path)
    tag = fields.get("type")
    if tag in allowed:
        if tag == "output_text":
            _normalize_output_text(fields, path)
        _check_source(fields, tag, path)
        return convert(fields, _PARTS[tag], path)
    if isinstance(tag, str) and tag in _PARTS:
        # A known part that is not allowed there: OpenAI's error names the part, not its field.
        raise invalid_value(path, tag, named)
    raise invalid_value(f"{path}.type", read_tag(fields, path, _PARTS), named)


def _check_source(fields: JsonObject, tag: str, path: str) -> None:
    sources = _SOURCES.get(tag, ())
    if sources and not any(source in fields for source in sources):
        raise missing_parameter(f"{path}.{sources[0]}")


def _normalize_output_text(fields: JsonObject, path: str) -> None:
    """Drop annotations of unknown types, and nulls in logprobs.

    Some gateways send annotation types of their own. Such an annotation is dropped and not refused,
    because annotations in the input do not affect the model.
    """
    if "annotations" in fields:
        fields["annotations"] = _read_annotations(fields["annotations"], f"{path}.annotations")
    if isinstance(fields.get("logprobs"), list):
        fields["logprobs"] = [_drop_logprob_nulls(logprob) for logprob in fields["logprobs"]]


def _read_annotations(raw: object, path: str) -> list[it.Annotation]:
    if not isinstance(raw, list):
        raise invalid_type(path, "an array", json_type_name(raw))
    annotations: list[it.Annotation] = []
    for index, annotation in enumerate(raw):
        fields = read_object(annotation, f"{path}[{index}]")
        with suppress(msgspec.ValidationError):
            annotations.append(msgspec.convert(fields, it.Annotation))
    return annotations


def _drop_logprob_nulls(raw: object) -> Any:
    if not isinstance(raw, dict):
        return raw
    fields = drop_nulls(raw)
    if isinstance(fields.get("top_logprobs"), list):
        fields["top_logprobs"] = [_drop_logprob_nulls(top) for top in fields["top_logprobs"]]
    return fields


def _normalize_agent_message(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    if isinstance(fields.get("content"), list):
        parts = read_array(fields["content"], f"{path}.content", limits.parts)
        fields["content"] = _read_parts(parts, f"{path}.content", _AGENT_PARTS, _AGENT_PARTS)


def _normalize_configuration(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    if "reasoning" not in fields and "text" not in fields:
        raise missing_parameter(f"{path}.reasoning")
    if "reasoning" in fields:
        effort = read_object(fields["reasoning"], f"{path}.reasoning")
        fields["reasoning"] = convert(effort, it.EffortUpdate, f"{path}.reasoning")
    if "text" in fields:
        text = read_object(fields["text"], f"{path}.text")
        if "format" in text:
            text["format"] = read_format(text["format"], f"{path}.text.format", UPDATE_FORMATS)
        fields["text"] = convert(text, it.FormatUpdate, f"{path}.text")


def _normalize_reasoning(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    """Parse ``content`` and ``summary`` of a reasoning item. Other servers use parts of the type
    ``text`` in these two fields. Such parts become parts of the types ``reasoning_text`` and
    ``summary_text``."""
    for name, tag, into in (
        ("content", "reasoning_text", it.ReasoningText),
        ("summary", "summary_text", it.SummaryText),
    ):
        if name not in fields:
            continue
        parts = read_array(fields[name], f"{path}.{name}", limits.parts)
        read = _read_parts(parts, f"{path}.{name}", (tag, "text"), (tag,))
        fields[name] = tuple(into(text=part.text) for part in read)  # type: ignore[union-attr]
    if fields.get("content") == ():
        del fields["content"]


def _normalize_tool_output(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    if isinstance(fields.get("output"), list):
        parts = read_array(fields["output"], f"{path}.output", limits.parts)
        fields["output"] = _read_parts(
            parts, f"{path}.output", _TOOL_OUTPUT_PARTS, _TOOL_OUTPUT_PARTS
        )


def _normalize_screenshot(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    if isinstance(fields.get("output"), dict):
        fields["output"] = drop_nulls(fields["output"])
        read_tag(fields["output"], f"{path}.output", ("computer_screenshot",))


def _normalize_tools(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    if "tools" in fields:
        fields["tools"] = read_tools(fields["tools"], f"{path}.tools", limits.tools)


def _normalize_mcp_tools(fields: JsonObject, path: str, limits: BodyLimits) -> None:
    """Drop the null fields of the tools in an ``mcp_list_tools`` item. Antiphon later returns this
    item to clients, which require that a field without a value is absent."""
    if isinstance(fields.get("tools"), list):
        fields["tools"] = [
            drop_nulls(tool) if isinstance(tool, dict) else tool for tool in fields["tools"]
        ]


#: Item class → function that normalizes its fields. For other classes, dropping nulls is enough.
_NORMALIZERS: Mapping[type[it.Item], Callable[[JsonObject, str, BodyLimits], None]] = {
    it.Message: _normalize_message,
    it.AgentMessage: _normalize_agent_message,
    it.ConfigurationUpdate: _normalize_configuration,
    it.Reasoning: _normalize_reasoning,
    it.FunctionCallOutput: _normalize_tool_output,
    it.CustomToolCallOutput: _normalize_tool_output,
    it.ComputerCallOutput: _normalize_screenshot,
    it.AdditionalTools: _normalize_tools,
    it.ToolSearchOutput: _normalize_tools,
    it.McpListTools: _normalize_mcp_tools,
}
