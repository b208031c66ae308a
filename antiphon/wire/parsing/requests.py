"""Parse request bodies into frozen objects.

An invalid body raises an error with status 400 and the path of the faulty field.

Null means "not given". Unknown fields are ignored, and the response names them. Three kinds of
unknown fields cause an error:

- A field of the Chat Completions API that has another name in the Responses API, such as
  ``messages``. The error names the field that replaces it.
- A field that would change the answer in another server or API, such as ``min_tokens``.
- A misspelt field, such as ``max_output_token``.

``wire.request`` decides which features Antiphon supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, invalid_field, unsupported_parameter
from antiphon.wire import items as it
from antiphon.wire.extensions import read_generation_config, read_structured_outputs
from antiphon.wire.json_types import JsonObject
from antiphon.wire.request import (
    FIELDS,
    CompactRequest,
    CreateResponse,
    InputTokensRequest,
    StreamOptions,
)
from antiphon.wire.request_options import (
    AccessPrograms,
    BackgroundOptions,
    ImageOptions,
    ModerationConfig,
    MultiAgent,
    PromptCacheRequest,
)
from antiphon.wire.request_shapes import RequestShape, RequestShapes
from antiphon.wire.resources.conversations import MAX_NEW_ITEMS, CreateConversation
from antiphon.wire.resources.prompts import TEMPLATE_FIELDS, CreatePrompt
from antiphon.wire.response import (
    ContextManagement,
    ConversationRef,
    PromptRef,
    ReasoningConfig,
    TextConfig,
)

from .errors import (
    empty_value,
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    out_of_range,
    too_long_error,
    too_many_properties,
    truncated,
    unknown_parameter,
)
from .fields import convert, drop_nulls, read_array, read_object, read_tag, require
from .ids import check_conversation_id, check_response_id
from .items import read_items, read_part
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object
from .previous_messages import read_previous_messages
from .request_checks import check_request
from .text_formats import read_format
from .tools import read_tool_choice, read_tools
from .unsupported_fields import find_ignored_fields, refuse_unsupported_fields

_R = TypeVar("_R", CreateResponse, InputTokensRequest, CompactRequest)

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

#: Fields that differ between the requests of a client. All others are the shape of a request.
_OWN = frozenset(
    {
        "client_metadata",
        "conversation",
        "input",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "request_id",
        "safety_identifier",
        "stream",
        "stream_options",
        "user",
    }
)
_NOT_GIVEN: Mapping[str, Any] = dict.fromkeys(_OWN)
#: Fields that a client can set. Clients may send a request for a response to all endpoints.
_KNOWN = frozenset({*FIELDS, *InputTokensRequest.__struct_fields__})
#: Fields whose values change other fields. Requests with one of them have no shape.
_UNKEPT = frozenset({"previous_input_messages", "prompt"})
_MAX_TEXT_CHARS = 10_485_760  # characters of a string input, OpenAI's limit
_MAX_TOKEN_ID = 2**31 - 1
_MAX_CONTEXT_ENTRIES = 16  # of context_management

#: Items that depend on a conversation and are not allowed in a stored prompt.
_NOT_TEMPLATE_ITEMS = (
    it.AgentMessage,
    it.Compaction,
    it.CompactionTrigger,
    it.ConfigurationUpdate,
    it.ContextCompaction,
    it.ItemReference,
)

#: Field of the Chat Completions API → field that replaces it. Ignoring it would mislead clients.
_MOVED_FIELDS: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "functions": "tools",
    "function_call": "tool_choice",
}


def parse_create_response(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS, shapes: RequestShapes | None = None
) -> CreateResponse:
    """Parse the body of ``POST /responses``. Raises ``InvalidRequest``.

    ``shapes``: the shapes of earlier requests. If the body has one of them, only the request's own
    fields are parsed.
    """
    if shapes is None:
        return read_create(parse_json_object(body, limits), limits)
    fields = _raw_fields(*shapes.shorten(body)) or _raw_fields(body, {})
    if fields is None or not _UNKEPT.isdisjoint(fields):
        return read_create(parse_json_object(body, limits), limits)
    key = tuple(
        [part for name, value in fields.items() if name not in _OWN for part in (name, value)]
    )
    shape = shapes.find(key)
    if shape is None:
        request = read_create(parse_json_object(body, limits), limits)
        shape = shapes.add(key, replace(request, **_NOT_GIVEN))
        return request if shape is None else _shaped(shape, request, fields)
    own = b",".join(
        [b'"%b":%b' % (name.encode(), value) for name, value in fields.items() if name in _OWN]
    )
    values = _read_fields(parse_json_object(b"{%b}" % own, limits), CreateResponse, limits)
    request = _shaped(shape, values, fields)
    _check_whole(request)
    return request


def _shaped(shape: RequestShape, request: CreateResponse, names: Iterable[str]) -> CreateResponse:
    """Return the request of this shape with the own fields of ``request``. ``names``: all fields
    that the body has."""
    own = {name: getattr(request, name) for name in names if name in _OWN}
    return replace(shape.template, **own)


def _raw_fields(body: bytes, replaced: Mapping[bytes, bytes]) -> dict[str, bytes] | None:
    """Return the fields of a JSON object, each with its JSON. Returns None for another body, and if
    a value was replaced that is not that of a field. ``replaced``: see ``RequestShapes.shorten``.
    """
    try:
        fields = {name: bytes(value) for name, value in _decode_fields(body).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not replaced:
        return fields
    whole = {name: replaced.get(value, value) for name, value in fields.items()}
    return whole if replaced.keys() <= set(fields.values()) else None


def read_create(raw: JsonObject, limits: BodyLimits = DEFAULT_LIMITS) -> CreateResponse:
    """Return the ``CreateResponse`` for the fields of a parsed request body. Raises
    ``InvalidRequest``."""
    request = _prepend_previous_messages(_read_request(raw, CreateResponse, limits))
    _check_whole(request)
    return request


def _check_whole(request: CreateResponse) -> None:
    if request.input is None and not request.has_context:
        raise missing_parameter("input")
    check_request(request)


def _prepend_previous_messages(request: CreateResponse) -> CreateResponse:
    """Put ``previous_input_messages`` in front of the input."""
    earlier = request.previous_input_messages
    if earlier is None:
        return request
    if request.previous_response_id is not None:
        raise InvalidRequest(
            "Only one of 'previous_input_messages' and 'previous_response_id' can be set.",
            param="previous_response_id",
        )
    return replace(
        request,
        input=(*earlier.items, *(request.input or ())),
        previous_input_messages=replace(earlier, items=()),
    )


def parse_input_tokens_request(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> InputTokensRequest:
    """Parse the body of ``POST /responses/input_tokens``. Raises ``InvalidRequest``."""
    request = _read_request(parse_json_object(body, limits), InputTokensRequest, limits)
    check_request(request.as_create())
    return request


def parse_compact_request(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CompactRequest:
    """Parse the body of ``POST /responses/compact``. Raises ``InvalidRequest``."""
    request = _read_request(parse_json_object(body, limits), CompactRequest, limits)
    if not request.input and request.previous_response_id is None:
        raise missing_parameter("input") if request.input is None else empty_value("input", ())
    _check_compact_cache(request.prompt_cache_options)
    check_request(request.as_create())
    return request


def _check_compact_cache(options: PromptCacheRequest | None) -> None:
    """Check the cache options of a compaction, of which OpenAI's API allows fewer. Raises
    ``InvalidRequest``."""
    if options is None:
        return
    if options.ttl != "30m":
        raise invalid_value("prompt_cache_options.ttl", options.ttl, ("30m",))
    for name in ("prewarm", "comparison_response_id"):
        if getattr(options, name) not in (False, UNSET):
            raise unsupported_parameter(f"prompt_cache_options.{name}", where="for compactions")


def parse_create_prompt(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> CreatePrompt:
    """Parse the body of ``POST /prompts``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    require(raw, "", "template")
    fields = read_object(raw["template"], "template")
    try:
        read_template(fields, limits)
    except InvalidRequest as error:
        param = f"template.{error.param}"
        raise InvalidRequest(error.message, param=param, code=error.code) from None
    return convert({**raw, "template": fields}, CreatePrompt, "")


def read_template(raw: JsonObject, limits: BodyLimits = DEFAULT_LIMITS) -> CreateResponse:
    """Read the request fields that a stored prompt sets. Raises ``InvalidRequest``."""
    for name in raw:
        if name not in TEMPLATE_FIELDS:
            raise unknown_parameter(truncated(name))
    request = _read_request(drop_nulls(raw), CreateResponse, limits)
    for at, item in enumerate(request.input or ()):
        if isinstance(item, _NOT_TEMPLATE_ITEMS):
            raise InvalidRequest(
                f"Items of type '{item.type}' are not allowed in a stored prompt.",
                param=f"input[{at}].type",
                code="invalid_value",
            )
    return request


def parse_create_conversation(
    body: bytes, limits: BodyLimits = DEFAULT_LIMITS
) -> CreateConversation:
    """Parse the body of ``POST /conversations``. An empty body means a conversation without items.
    Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits) if body.strip() else {}
    return CreateConversation(
        items=read_items(raw["items"], "items", _item_limits(limits)) if "items" in raw else (),
        metadata=read_metadata(raw["metadata"]) if "metadata" in raw else None,
    )


def parse_conversation_metadata(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> dict[str, str]:
    """Parse the metadata in the body of ``POST /conversations/{id}``. Raises ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    require(raw, "", "metadata")
    return read_metadata(raw["metadata"])


def parse_new_items(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> tuple[it.Item, ...]:
    """Parse the items in the body of ``POST /conversations/{id}/items``. Raises
    ``InvalidRequest``."""
    raw = parse_json_object(body, limits)
    require(raw, "", "items")
    return read_items(raw["items"], "items", _item_limits(limits))


def _item_limits(limits: BodyLimits) -> BodyLimits:
    return replace(limits, items=min(limits.items, MAX_NEW_ITEMS))


def _read_request(raw: JsonObject, cls: type[_R], limits: BodyLimits) -> _R:
    if not _MOVED_FIELDS.keys().isdisjoint(raw):
        raise _moved_field(raw)
    refuse_unsupported_fields(raw)
    ignored = find_ignored_fields(raw, _KNOWN)
    if "generation_config" in raw:
        raw = {**read_generation_config(raw["generation_config"], "generation_config"), **raw}
        raw["generation_config"] = {}
    if ignored:
        raw = {**raw, "ignored_fields": ignored}
    return _read_fields(raw, cls, limits)


def _read_fields(raw: JsonObject, cls: type[_R], limits: BodyLimits) -> _R:
    """Return a request with these fields, all of which it has."""
    for name in [name for name in raw if name in _READERS]:
        raw[name] = _READERS[name](raw[name], name, limits)
    return convert(raw, cls, "")


def _moved_field(raw: JsonObject) -> InvalidRequest:
    """Return the error for a request with fields that exist only in the Chat Completions API. The
    message names one of these fields, and the field that replaces it in the Responses API."""
    old = next(name for name in _MOVED_FIELDS if name in raw)
    return InvalidRequest(
        f"Unsupported parameter: '{old}'. In the Responses API, this parameter has moved "
        f"to '{_MOVED_FIELDS[old]}'. Try again with the new parameter.",
        param=old,
        code="unsupported_parameter",
    )


# --- fields with a parser of their own -----------------------------------------------------------


def _read_input(raw: object, path: str, limits: BodyLimits) -> tuple[it.Item, ...]:
    if isinstance(raw, str):
        if len(raw) > _MAX_TEXT_CHARS:
            raise too_long_error(path, len(raw), _MAX_TEXT_CHARS)
        return (it.Message(role="user", content=(it.InputText(text=raw),)),)
    if isinstance(raw, dict):  # a single item, as vLLM and transformers accept it
        raw = [raw]
    if not isinstance(raw, list):
        raise invalid_type(path, "a string or an array", json_type_name(raw))
    return read_items(raw, path, limits)


def _read_tools(raw: object, path: str, limits: BodyLimits) -> Any:
    return read_tools(raw, path, limits.tools)


def _read_choice(raw: object, path: str, limits: BodyLimits) -> Any:
    return read_tool_choice(raw, path)


def _read_text(raw: object, path: str, limits: BodyLimits) -> TextConfig:
    fields = read_object(raw, path)
    if "format" in fields:
        fields["format"] = read_format(fields["format"], f"{path}.format")
    return convert(fields, TextConfig, path)


def _object_reader(cls: type[Struct]) -> Callable[[object, str, BodyLimits], Struct]:
    """Return a function that reads a JSON object with the fields of ``cls``. Null fields are
    dropped."""

    def read(raw: object, path: str, limits: BodyLimits) -> Struct:
        return convert(read_object(raw, path), cls, path)

    return read


def _read_conversation(raw: object, path: str, limits: BodyLimits) -> ConversationRef:
    if isinstance(raw, str):
        raw = {"id": raw}
    if not isinstance(raw, dict):
        raise invalid_type(path, "a string or an object", json_type_name(raw))
    reference = convert(read_object(raw, path), ConversationRef, path)
    check_conversation_id(reference.id, path)
    return reference


def _read_previous_response_id(raw: object, path: str, limits: BodyLimits) -> str:
    if not isinstance(raw, str):
        raise invalid_type(path, "a string", json_type_name(raw))
    return check_response_id(raw, path)


_VARIABLE_PARTS = ("input_text", "input_image", "input_file")


def _read_prompt(raw: object, path: str, limits: BodyLimits) -> PromptRef:
    fields = read_object(raw, path)
    if "variables" in fields:
        variables = read_object(fields["variables"], f"{path}.variables")
        fields["variables"] = {
            name: _read_variable(value, f"{path}.variables.{truncated(name)}")
            for name, value in variables.items()
        }
    return convert(fields, PromptRef, path)


def _read_variable(raw: object, path: str) -> Any:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, dict):
        raise invalid_type(path, "a string or an object", json_type_name(raw))
    return read_part(raw, path, _VARIABLE_PARTS)


def _read_context_management(
    raw: object, path: str, limits: BodyLimits
) -> tuple[ContextManagement, ...]:
    entries = read_array(raw, path, _MAX_CONTEXT_ENTRIES)
    if not entries:
        raise empty_value(path, ())
    return tuple(_read_context_entry(entry, f"{path}[{at}]") for at, entry in enumerate(entries))


def _read_context_entry(raw: object, path: str) -> ContextManagement:
    fields = read_object(raw, path)
    read_tag(fields, path, ("compaction",))
    return convert(fields, ContextManagement, path)


def _read_stop(raw: object, path: str, limits: BodyLimits) -> Any:
    return [raw] if isinstance(raw, str) else raw


def _read_metadata(raw: object, path: str, limits: BodyLimits) -> dict[str, str]:
    return read_metadata(raw, path)


def read_metadata(raw: object, path: str = "metadata") -> dict[str, str]:
    """Read metadata. It has at most 16 entries, with keys up to 64 characters and values up to 512
    characters. Raises ``InvalidRequest``."""
    if not isinstance(raw, dict):
        raise invalid_type(path, "an object", json_type_name(raw))
    if len(raw) > 16:
        raise too_many_properties(path, len(raw), 16)
    for name, value in raw.items():
        if len(name) > 64:
            raise too_long_error(path, len(name), 64)
        if not isinstance(value, str):
            raise invalid_type(f"{path}.{name}", "a string", json_type_name(value))
        if len(value) > 512:
            raise too_long_error(f"{path}.{name}", len(value), 512)
    return raw


def _read_logit_bias(raw: object, path: str, limits: BodyLimits) -> dict[int, float]:
    if not isinstance(raw, dict):
        raise invalid_type(path, "an object", json_type_name(raw))
    biases: dict[int, float] = {}
    for name, value in raw.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise _token_id_error(path)
        if (token := int(name)) > _MAX_TOKEN_ID:
            raise _token_id_error(path)
        at = f"{path}.{truncated(name)}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(at, "a decimal", json_type_name(value))
        if not -100 <= value <= 100:
            sign, bound = ("<=", "100") if value > 100 else (">=", "-100")
            raise out_of_range(at, "decimal", value, sign, bound)
        biases[token] = float(value)
    return biases


def _token_id_error(path: str) -> InvalidRequest:
    return invalid_field(path, "its keys must be token ids.")


_READERS: Mapping[str, Callable[[Any, str, BodyLimits], Any]] = {
    "input": _read_input,
    "tools": _read_tools,
    "tool_choice": _read_choice,
    "text": _read_text,
    "reasoning": _object_reader(ReasoningConfig),
    "stream_options": _object_reader(StreamOptions),
    "prompt_cache_options": _object_reader(PromptCacheRequest),
    "background_options": _object_reader(BackgroundOptions),
    "access_programs": _object_reader(AccessPrograms),
    "image": _object_reader(ImageOptions),
    "moderation": _object_reader(ModerationConfig),
    "multi_agent": _object_reader(MultiAgent),
    "conversation": _read_conversation,
    "previous_response_id": _read_previous_response_id,
    "prompt": _read_prompt,
    "context_management": _read_context_management,
    "stop": _read_stop,
    "metadata": _read_metadata,
    "logit_bias": _read_logit_bias,
    "previous_input_messages": read_previous_messages,
    "structured_outputs": lambda raw, path, _: read_structured_outputs(raw, path),
}
