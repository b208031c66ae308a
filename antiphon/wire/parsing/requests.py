"""From a body to the frozen request, or to a 400 with the path of what is wrong.

Null means "not given"; fields nobody knows are ignored. What this server supports is not decided
here (``wire.request``), except that fields of the Chat Completions API are told where they went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire.conversations import CreateConversation
from antiphon.wire.extensions import read_generation, read_guides
from antiphon.wire.prompts import TEMPLATE_FIELDS, CreatePrompt
from antiphon.wire.request import CompactRequest, CreateResponse, InputTokens, StreamOptions
from antiphon.wire.response import (
    ContextManagement,
    ConversationRef,
    JsonSchemaFormat,
    PromptRef,
    ReasoningConfig,
    TextConfig,
)
from antiphon.wire.response import TextFormatConfig as Format

from .errors import (
    bad_type,
    empty,
    kind_of,
    missing,
    out_of_range,
    shortened,
    too_long,
    too_many_properties,
)
from .fields import Json, array, by_tag, converted, fields_of, tag_of, without_nulls
from .items import read_items, read_part
from .json_body import DEFAULT_LIMITS, Limits, parse
from .previous_messages import earlier_items
from .request_checks import check
from .tools import check_name, read_choice, read_tools
from .unsupported_fields import refuse_foreign

__all__ = [
    "Limits",
    "compact",
    "conversation_metadata",
    "create_conversation",
    "create_prompt",
    "create_response",
    "input_tokens",
    "new_items",
    "read_create",
    "read_items",
    "read_metadata",
    "template",
]

_R = TypeVar("_R", CreateResponse, InputTokens, CompactRequest)

_MAX_TEXT = 10_485_760  # characters of a string input, OpenAI's limit
_FORMAT_NAME_LENGTH = 64
_MAX_TOKEN_ID = 2**31 - 1
_MAX_ENTRIES = 16  # of context_management
_MAX_NEW_ITEMS = 20  # that a conversation takes at a time

#: Items that only mean something in one conversation.
_NOT_IN_TEMPLATES = (it.Compaction, it.CompactionTrigger, it.ItemReference)

#: Fields of the Chat Completions API, and where they went. Ignoring them would mislead.
_MOVED: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "functions": "tools",
    "function_call": "tool_choice",
}


def create_response(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreateResponse:
    """The body of ``POST /responses``. Raises ``InvalidRequest``."""
    return read_create(parse(body, limits), limits)


def read_create(raw: Json, limits: Limits = DEFAULT_LIMITS) -> CreateResponse:
    """A request, from its fields. Raises ``InvalidRequest``."""
    request = _with_earlier(_request(raw, CreateResponse, limits))
    if request.input is None and not request.has_context:
        raise missing("input")
    check(request)
    return request


def _with_earlier(request: CreateResponse) -> CreateResponse:
    """What came before becomes the beginning of the input."""
    earlier = request.previous_input_messages
    if earlier is None:
        return request
    if request.previous_response_id is not None:
        raise InvalidRequest(
            "Only one of 'previous_input_messages' and 'previous_response_id' can be set.",
            param="previous_response_id",
        )
    return replace(request, input=(*earlier, *(request.input or ())), previous_input_messages=None)


def input_tokens(body: bytes, limits: Limits = DEFAULT_LIMITS) -> InputTokens:
    """The body of ``POST /responses/input_tokens``. Raises ``InvalidRequest``."""
    request = _request(parse(body, limits), InputTokens, limits)
    check(request.as_create())
    return request


def compact(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CompactRequest:
    """The body of ``POST /responses/compact``. Raises ``InvalidRequest``."""
    request = _request(parse(body, limits), CompactRequest, limits)
    if not request.input and request.previous_response_id is None:
        raise missing("input") if request.input is None else empty("input", ())
    check(request.as_create())
    return request


def create_prompt(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreatePrompt:
    """The body of ``POST /prompts``. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "template" not in raw:
        raise missing("template")
    fields = fields_of(raw["template"], "template")
    try:
        template(fields, limits)
    except InvalidRequest as error:
        param = f"template.{error.param}"
        raise InvalidRequest(error.message, param=param, code=error.code) from None
    return converted({**raw, "template": fields}, CreatePrompt, "")


def template(raw: Json, limits: Limits = DEFAULT_LIMITS) -> CreateResponse:
    """The fields that a stored prompt sets. Raises ``InvalidRequest``."""
    for name in raw:
        if name not in TEMPLATE_FIELDS:
            raise InvalidRequest(
                f"Unknown parameter: '{shortened(name)}'.", param=name, code="unknown_parameter"
            )
    request = _request(without_nulls(raw), CreateResponse, limits)
    for at, item in enumerate(request.input or ()):
        if isinstance(item, _NOT_IN_TEMPLATES):
            raise InvalidRequest(
                f"Items of type '{item.__struct_config__.tag}' cannot stand in a stored prompt.",
                param=f"input[{at}].type",
                code="invalid_value",
            )
    return request


def create_conversation(body: bytes, limits: Limits = DEFAULT_LIMITS) -> CreateConversation:
    """The body of ``POST /conversations``; an empty one asks for an empty conversation. Raises
    ``InvalidRequest``."""
    raw = parse(body, limits) if body.strip() else {}
    return CreateConversation(
        items=read_items(raw["items"], "items", _new_items(limits)) if "items" in raw else (),
        metadata=read_metadata(raw["metadata"]) if "metadata" in raw else None,
    )


def conversation_metadata(body: bytes, limits: Limits = DEFAULT_LIMITS) -> dict[str, str]:
    """The labels in the body of ``POST /conversations/{id}``. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "metadata" not in raw:
        raise missing("metadata")
    return read_metadata(raw["metadata"])


def new_items(body: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[it.Item, ...]:
    """The items in the body of ``POST /conversations/{id}/items``. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "items" not in raw:
        raise missing("items")
    return read_items(raw["items"], "items", _new_items(limits))


def _new_items(limits: Limits) -> Limits:
    return replace(limits, items=min(limits.items, _MAX_NEW_ITEMS))


def _request(raw: Json, cls: type[_R], limits: Limits) -> _R:
    for old, new in _MOVED.items():
        if old in raw:
            raise InvalidRequest(
                f"Unsupported parameter: '{old}'. In the Responses API, this parameter has moved "
                f"to '{new}'. Try again with the new parameter.",
                param=old,
                code="unsupported_parameter",
            )
    refuse_foreign(raw)
    if "generation_config" in raw:
        raw = {**read_generation(raw["generation_config"], "generation_config"), **raw}
        raw["generation_config"] = {}
    for name, read in _READERS.items():
        if name in raw:
            raw[name] = read(raw[name], name, limits)
    return converted(raw, cls, "")


# --- fields that need more than their type -------------------------------------------------------


def _input(raw: Any, path: str, limits: Limits) -> tuple[it.Item, ...]:
    if isinstance(raw, str):
        if len(raw) > _MAX_TEXT:
            raise too_long(path, len(raw), _MAX_TEXT)
        return (it.Message(role="user", content=(it.InputText(text=raw),)),)
    if not isinstance(raw, list):
        raise bad_type(path, "a string or an array", kind_of(raw))
    return read_items(raw, path, limits)


def _tools(raw: Any, path: str, limits: Limits) -> Any:
    return read_tools(raw, path, limits.tools)


def _choice(raw: Any, path: str, limits: Limits) -> Any:
    return read_choice(raw, path)


_FORMATS: Mapping[str, type[Format]] = by_tag(Format.__args__)


def _text(raw: Any, path: str, limits: Limits) -> TextConfig:
    fields = fields_of(raw, path)
    if "format" in fields:
        fields["format"] = _format(fields["format"], f"{path}.format")
    return converted(fields, TextConfig, path)


def _format(raw: Any, path: str) -> Format:
    fields = fields_of(raw, path)
    cls = _FORMATS[tag_of(fields, path, _FORMATS)]
    if cls is JsonSchemaFormat and "name" not in fields and "json_schema" in fields:
        raise missing(
            f"{path}.name",
            " This looks like a format of the Chat Completions API; here its fields stand beside "
            "'type'.",
        )
    form = converted(fields, cls, path)
    if isinstance(form, JsonSchemaFormat):
        check_name(form.name, f"{path}.name", _FORMAT_NAME_LENGTH)
    return form


def _reasoning(raw: Any, path: str, limits: Limits) -> ReasoningConfig:
    return converted(fields_of(raw, path), ReasoningConfig, path)


def _stream_options(raw: Any, path: str, limits: Limits) -> StreamOptions:
    return converted(fields_of(raw, path), StreamOptions, path)


def _conversation(raw: Any, path: str, limits: Limits) -> ConversationRef:
    if isinstance(raw, str):
        raw = {"id": raw}
    if not isinstance(raw, dict):
        raise bad_type(path, "a string or an object", kind_of(raw))
    return converted(fields_of(raw, path), ConversationRef, path)


_VALUES = ("input_text", "input_image", "input_file")


def _prompt(raw: Any, path: str, limits: Limits) -> PromptRef:
    fields = fields_of(raw, path)
    if "variables" in fields:
        variables = fields_of(fields["variables"], f"{path}.variables")
        fields["variables"] = {
            name: _value(value, f"{path}.variables.{shortened(name)}")
            for name, value in variables.items()
        }
    return converted(fields, PromptRef, path)


def _value(raw: Any, path: str) -> Any:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, dict):
        raise bad_type(path, "a string or an object", kind_of(raw))
    return read_part(raw, path, _VALUES)


def _context_management(raw: Any, path: str, limits: Limits) -> tuple[ContextManagement, ...]:
    entries = array(raw, path, _MAX_ENTRIES)
    if not entries:
        raise empty(path, ())
    return tuple(_managed(entry, f"{path}[{at}]") for at, entry in enumerate(entries))


def _managed(raw: Any, path: str) -> ContextManagement:
    fields = fields_of(raw, path)
    tag_of(fields, path, ("compaction",))
    return converted(fields, ContextManagement, path)


def _stop(raw: Any, path: str, limits: Limits) -> Any:
    return [raw] if isinstance(raw, str) else raw


def _metadata(raw: Any, path: str, limits: Limits) -> dict[str, str]:
    return read_metadata(raw, path)


def read_metadata(raw: Any, path: str = "metadata") -> dict[str, str]:
    """Labels: at most 16, their names at most 64 and their texts at most 512 characters long.
    Raises ``InvalidRequest``."""
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    if len(raw) > 16:
        raise too_many_properties(path, len(raw), 16)
    for name, value in raw.items():
        if len(name) > 64:
            raise too_long(path, len(name), 64)
        if not isinstance(value, str):
            raise bad_type(f"{path}.{name}", "a string", kind_of(value))
        if len(value) > 512:
            raise too_long(f"{path}.{name}", len(value), 512)
    return raw


def _logit_bias(raw: Any, path: str, limits: Limits) -> dict[int, float]:
    if not isinstance(raw, dict):
        raise bad_type(path, "an object", kind_of(raw))
    biases: dict[int, float] = {}
    for name, value in raw.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise _not_token_ids(path)
        if (token := int(name)) > _MAX_TOKEN_ID:
            raise _not_token_ids(path)
        at = f"{path}.{shortened(name)}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_type(at, "a decimal", kind_of(value))
        if not -100 <= value <= 100:
            sign, bound = ("<=", "100") if value > 100 else (">=", "-100")
            raise out_of_range(at, "decimal", value, sign, bound)
        biases[token] = float(value)
    return biases


def _not_token_ids(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid '{path}': its keys must be token ids.", param=path, code="invalid_value"
    )


_READERS: Mapping[str, Callable[[Any, str, Limits], Any]] = {
    "input": _input,
    "tools": _tools,
    "tool_choice": _choice,
    "text": _text,
    "reasoning": _reasoning,
    "stream_options": _stream_options,
    "conversation": _conversation,
    "prompt": _prompt,
    "context_management": _context_management,
    "stop": _stop,
    "metadata": _metadata,
    "logit_bias": _logit_bias,
    "previous_input_messages": lambda raw, path, limits: earlier_items(raw, path, limits.items),
    "structured_outputs": lambda raw, path, _: read_guides(raw, path),
}
