"""From what clients send to the frozen shapes of this package, or to a 400 with the field's path.

Clients send nulls for what they do not mean, items without a type, content as a string, keys of
their own: all of it is brought into one form here. An explicit table chooses the shape by
``type``; nothing is tried in turn. What this server supports is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from antiphon.errors import InvalidRequest

from . import items as it
from .body import Limits, parse
from .checks import check, check_tokens
from .faults import bad_type, bad_value, kind_of, missing, too_long, too_many
from .request import CreateResponse, InputTokens
from .response import JsonSchemaFormat, ReasoningConfig, TextConfig, TextFormatConfig
from .shape import converted, without_nulls
from .toolbox import check_name, read_choice, read_tools

__all__ = ["Limits", "create_response", "input_tokens", "read_items"]

Json = dict[str, Any]
_T = TypeVar("_T", CreateResponse, InputTokens)

_DEFAULT_LIMITS = Limits()
_MAX_TEXT = 10_485_760  # characters of a string input, OpenAI's limit


def create_response(body: bytes, limits: Limits = _DEFAULT_LIMITS) -> CreateResponse:
    """The body of ``POST /responses``. Raises ``InvalidRequest``."""
    request = _request(parse(body, limits), CreateResponse, limits)
    check(request)
    return request


def input_tokens(body: bytes, limits: Limits = _DEFAULT_LIMITS) -> InputTokens:
    """The body of ``POST /responses/input_tokens``. Raises ``InvalidRequest``."""
    request = _request(parse(body, limits), InputTokens, limits)
    check_tokens(request)
    return request


def _request(raw: Json, cls: type[_T], limits: Limits) -> _T:
    fields = {name: value for name, value in raw.items() if name in cls.__struct_fields__}
    for name, read in _FIELDS.items():
        if name in fields:
            fields[name] = read(fields[name], limits)
    return converted(fields, cls, "")


# --- fields of their own -------------------------------------------------------------------------


def _input(raw: Any, limits: Limits) -> tuple[it.Item, ...]:
    if isinstance(raw, str):
        if len(raw) > _MAX_TEXT:
            raise too_long("input", len(raw), _MAX_TEXT)
        return (it.Message(role="user", content=(it.InputText(text=raw),)),)
    return read_items(raw, "input", limits)


def _tools(raw: Any, limits: Limits) -> Any:
    if isinstance(raw, list) and len(raw) > limits.tools:
        raise too_many("tools", len(raw), limits.tools)
    return read_tools(raw, "tools")


def _choice(raw: Any, limits: Limits) -> Any:
    return read_choice(raw)


_FORMATS: Mapping[str, type[TextFormatConfig]] = {
    str(cls.__struct_config__.tag): cls for cls in TextFormatConfig.__args__
}


def _text(raw: Any, limits: Limits) -> TextConfig:
    if not isinstance(raw, dict):
        raise bad_type("text", "an object", kind_of(raw))
    fields = without_nulls(raw)
    if (form := fields.get("format")) is not None:
        fields["format"] = _format(form)
    return converted(fields, TextConfig, "text")


def _format(raw: Any) -> Any:
    path = "text.format"
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    if (kind := raw.get("type")) is None:
        raise missing(f"{path}.type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise bad_value(f"{path}.type", kind, _FORMATS)
    if kind == "json_schema" and "name" not in raw and "json_schema" in raw:
        raise missing(
            f"{path}.name",
            " This looks like a format of the Chat Completions API; here its fields stand beside "
            "'type'.",
        )
    form = converted(without_nulls(raw), _FORMATS[kind], path)
    if isinstance(form, JsonSchemaFormat):
        check_name(form.name, f"{path}.name", 64)
    return form


def _reasoning(raw: Any, limits: Limits) -> ReasoningConfig:
    if not isinstance(raw, dict):
        raise bad_type("reasoning", "an object", kind_of(raw))
    return converted(without_nulls(raw), ReasoningConfig, "reasoning")


def _stop(raw: Any, limits: Limits) -> Any:
    return [raw] if isinstance(raw, str) else raw


_FIELDS: Mapping[str, Callable[[Any, Limits], Any]] = {
    "input": _input,
    "tools": _tools,
    "tool_choice": _choice,
    "text": _text,
    "reasoning": _reasoning,
    "stop": _stop,
}


# --- items ---------------------------------------------------------------------------------------

_ITEMS: Mapping[str, type[it.ItemBase]] = {
    str(cls.__struct_config__.tag): cls for cls in it.INPUT_ITEMS
}
_PARTS: Mapping[str, type[it.Part]] = {
    str(cls.__struct_config__.tag): cls for cls in it.Part.__args__
}
_ANNOTATIONS = tuple(it.Annotation.__args__)
_SAID = ("output_text", "refusal", "text", "summary_text", "reasoning_text")
_GIVEN = ("input_text", "input_image", "input_file", "input_audio", "input_video", "text")
#: What may stand in a message, by role. Roles that are not listed take any part.
_ROLE_PARTS: Mapping[str, tuple[str, ...]] = {
    "assistant": _SAID,
    "user": _GIVEN,
    "system": _GIVEN,
    "developer": _GIVEN,
}
#: The words of OpenAI's message where a part is in the wrong place.
_ROLE_NAMES: Mapping[str, tuple[str, ...]] = {"assistant": ("output_text", "refusal")}
_OUTPUT_PARTS = ("input_text", "input_image", "input_file", "input_video")
# OpenAI's limit is 64; models that write their own ids (Kimi K2) need more, and what we emit has to
# be accepted back.
_CALL_ID_LENGTH = 256


def read_items(raw: Any, path: str, limits: Limits = _DEFAULT_LIMITS) -> tuple[it.Item, ...]:
    """The items of an array that stands at ``path``. Raises ``InvalidRequest``."""
    if not isinstance(raw, list):
        raise bad_type(path, "a string or an array", kind_of(raw))
    if len(raw) > limits.items:
        raise too_many(path, len(raw), limits.items)
    found = tuple(_item(item, f"{path}[{index}]", limits) for index, item in enumerate(raw))
    seen: set[str] = set()
    for item in found:
        if item.id and item.id in seen:
            raise InvalidRequest(
                f"Duplicate item found with id {item.id[:80]}. Remove duplicate items from your "
                "input and try again.",
                param=path,
            )
        seen.add(item.id)
    return found


def _item(raw: Any, path: str, limits: Limits) -> it.Item:
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    kind = raw.get("type")
    if kind is None:
        kind = "message" if "role" in raw else "item_reference" if "id" in raw else None
        if kind is None:
            raise missing(f"{path}.type")
    cls = _ITEMS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise bad_value(f"{path}.type", kind, _ITEMS)
    fields = without_nulls(raw)
    fields["type"] = kind
    if (adapt := _ADAPT.get(cls)) is not None:
        adapt(fields, path, limits)
    item: it.Item = converted(fields, cls, path)  # type: ignore[assignment]
    call_id = fields.get("call_id")
    if isinstance(call_id, str) and not 1 <= len(call_id) <= _CALL_ID_LENGTH:
        if not call_id:
            raise bad_value(f"{path}.call_id", call_id)
        raise too_long(f"{path}.call_id", len(call_id), _CALL_ID_LENGTH)
    if cls is it.ItemReference and not item.id:
        raise missing(f"{path}.id")
    return item


def _message(fields: Json, path: str, limits: Limits) -> None:
    role = fields.get("role")
    content = fields.get("content")
    if content is None:
        raise missing(f"{path}.content" if role is not None else f"{path}.role")
    said = role == "assistant"
    if isinstance(content, str):
        fields["content"] = (it.OutputText(text=content) if said else it.InputText(text=content),)
        return
    allowed = _ROLE_PARTS.get(role, tuple(_PARTS)) if isinstance(role, str) else tuple(_PARTS)
    fields["content"] = _parts(
        content, f"{path}.content", limits, allowed, _ROLE_NAMES.get(str(role), allowed)
    )


def _parts(
    raw: Any,
    path: str,
    limits: Limits,
    allowed: tuple[str, ...],
    named: tuple[str, ...] | None = None,
) -> tuple[it.Part, ...]:
    if not isinstance(raw, list):
        raise bad_type(path, "a string or an array", kind_of(raw))
    if len(raw) > limits.parts:
        raise too_many(path, len(raw), limits.parts)
    return tuple(
        _part(part, f"{path}[{index}]", allowed, named or allowed) for index, part in enumerate(raw)
    )


def _part(raw: Any, path: str, allowed: tuple[str, ...], named: tuple[str, ...]) -> it.Part:
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    kind = raw.get("type")
    if kind is None:
        raise missing(f"{path}.type")
    if kind not in allowed:
        # OpenAI's own error for this one names the part, not its field.
        raise bad_value(path if kind in _PARTS else f"{path}.type", kind, named)
    fields = without_nulls(raw)
    if "annotations" in fields:
        fields["annotations"] = _annotations(fields["annotations"])
    return converted(fields, _PARTS[kind], path)


def _annotations(raw: Any) -> list[it.Annotation]:
    """Those of a kind we know. A replayed citation says nothing to the model, and gateways invent
    kinds of their own: losing one is better than refusing the conversation."""
    known: list[it.Annotation] = []
    for annotation in raw if isinstance(raw, list) else ():
        try:
            known.append(msgspec.convert(annotation, it.Annotation))
        except msgspec.ValidationError:
            continue
    return known


def _reasoning_item(fields: Json, path: str, limits: Limits) -> None:
    for name, kinds in (
        ("content", ("reasoning_text", "text")),
        ("summary", ("summary_text", "text")),
    ):
        if name not in fields:
            continue
        parts = _parts(fields[name], f"{path}.{name}", limits, kinds)
        into = it.SummaryText if name == "summary" else it.ReasoningText
        fields[name] = tuple(into(text=part.text) for part in parts)  # type: ignore[union-attr]
    if fields.get("content") == ():
        del fields["content"]


def _output(fields: Json, path: str, limits: Limits) -> None:
    if isinstance(fields.get("output"), list):
        fields["output"] = _parts(fields["output"], f"{path}.output", limits, _OUTPUT_PARTS)


def _more_tools(fields: Json, path: str, limits: Limits) -> None:
    if "tools" in fields:
        fields["tools"] = read_tools(fields["tools"], f"{path}.tools")


def _mcp_tools(fields: Json, path: str, limits: Limits) -> None:
    """Clients insist that what a tool lacks is absent, not null."""
    if isinstance(fields.get("tools"), list):
        fields["tools"] = [
            without_nulls(tool) if isinstance(tool, dict) else tool for tool in fields["tools"]
        ]


def _screenshot(fields: Json, path: str, limits: Limits) -> None:
    if isinstance(fields.get("output"), dict):
        fields["output"] = without_nulls(fields["output"])


_ADAPT: Mapping[type[it.ItemBase], Callable[[Json, str, Limits], None]] = {
    it.Message: _message,
    it.Reasoning: _reasoning_item,
    it.FunctionCallOutput: _output,
    it.CustomToolCallOutput: _output,
    it.AdditionalTools: _more_tools,
    it.ToolSearchOutput: _more_tools,
    it.McpListTools: _mcp_tools,
    it.ComputerCallOutput: _screenshot,
}
