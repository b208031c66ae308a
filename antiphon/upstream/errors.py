"""Translate the errors of an upstream to errors with Antiphon's messages and codes.

Servers report errors in many forms, and this module parses all of these forms. Some errors only
concern the operator, such as an invalid API key. For such an error, clients get a message of
Antiphon instead of the upstream's message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, context_length_exceeded

#: Finish reasons of servers that stopped an answer before its end (vLLM, SGLang, TensorRT-LLM,
#: OpenRouter, DeepSeek).
ABORT_REASONS = frozenset(
    {"abort", "cancelled", "error", "insufficient_system_resource", "timeout"}
)

#: Messages for a prompt that does not fit in the context (llama-server, vLLM, SGLang, TensorRT-LLM,
#: hosted servers).
_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|max_model_len|max_position_embeddings|prompt is too long"
    r"|(input|prompt|request)\b.{0,60}\b(too long|exceeds?\b.{0,40}\b(tokens|length|limit))",
    re.IGNORECASE | re.DOTALL,
)
#: Messages for a text that violates a policy. Some gateways, such as OpenRouter, send them with
#: status 403.
_FLAGGED = re.compile(r"\bflagged\b|\bmoderation\b|content[ _](policy|filter)", re.IGNORECASE)
_MAX_MESSAGE = 1000
#: Error codes for images that violate a policy.
_MODERATION_CODES = frozenset({"moderation_blocked", "content_policy_violation"})

#: Error code at which coding agents show the message and do not try again, also within a stream.
_OPERATOR_CODE = "invalid_prompt"
_ASK_OPERATOR = "Only its operator can correct this."
#: HTTP status → code and message of errors that the client cannot correct, because they do not
#: depend on its request.
_OPERATOR_ERRORS: Mapping[int, tuple[str, str]] = {
    401: (_OPERATOR_CODE, f"The upstream rejects this server's API key. {_ASK_OPERATOR}"),
    402: (
        "insufficient_quota",
        f"This server has no credit left at its upstream. {_ASK_OPERATOR}",
    ),
    403: (_OPERATOR_CODE, f"The upstream denies this server access to the model. {_ASK_OPERATOR}"),
    404: (_OPERATOR_CODE, f"The upstream has no such model or endpoint. {_ASK_OPERATOR}"),
    405: (_OPERATOR_CODE, f"The upstream does not support this API. {_ASK_OPERATOR}"),
    407: (_OPERATOR_CODE, f"A proxy in front of the upstream rejects this server. {_ASK_OPERATOR}"),
    429: ("rate_limit_exceeded", "The upstream's rate limit is exceeded."),
    501: (_OPERATOR_CODE, f"The upstream does not implement this API. {_ASK_OPERATOR}"),
    505: (_OPERATOR_CODE, f"The upstream rejects this version of HTTP. {_ASK_OPERATOR}"),
    506: (_OPERATOR_CODE, f"The upstream is configured wrongly. {_ASK_OPERATOR}"),
    508: (_OPERATOR_CODE, f"The upstream's address leads back to it. {_ASK_OPERATOR}"),
    510: (_OPERATOR_CODE, f"The upstream demands an extension of HTTP. {_ASK_OPERATOR}"),
    511: (_OPERATOR_CODE, f"A network in front of the upstream demands a login. {_ASK_OPERATOR}"),
}
#: HTTP status → message of failures that may be temporary. All other 5xx statuses without an entry
#: in ``_OPERATOR_ERRORS`` also count as temporary.
_TRANSIENT_ERRORS: Mapping[int, str] = {
    408: "The upstream did not receive the request in time.",
    425: "The upstream is not ready for the request yet.",
    502: "The upstream does not answer its gateway.",
    503: "The upstream failed: it is overloaded or not ready.",
    504: "The upstream does not answer its gateway in time.",
    507: "The upstream failed: its storage is full.",
    529: "The upstream failed: it is overloaded.",
}
#: The only status in ``_OPERATOR_ERRORS`` that may be temporary.
_RETRYABLE_STATUS = 429
#: Code of an error within a stream → the corresponding HTTP status.
_STATUS_OF_CODE: Mapping[str, int] = {
    "rate_limit_exceeded": 429,
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "billing_hard_limit_reached": 402,
    "billing_not_active": 402,
}
#: OpenAI's codes of invalid requests, which are passed on unchanged.
_PASSED_ON_CODES = frozenset(
    {"invalid_type", "invalid_value", "unsupported_parameter", "unsupported_value"}
)

#: First part of the name of an upstream's request field → the corresponding field of the Responses
#: API.
_OUR_FIELDS: Mapping[str, str] = {
    "messages": "input",
    "prompt": "input",
    "input_ids": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "max_new_tokens": "max_output_tokens",
    "n_predict": "max_output_tokens",
    "logprobs": "top_logprobs",
    "repeat_penalty": "repetition_penalty",
    "response_format": "text.format",
    "structured_outputs": "text.format",
    "json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    **{
        name: name
        for name in (
            "input",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "max_output_tokens",
            "logit_bias",
            "top_logprobs",
            "priority",
            "cache_salt",
            "chat_template_kwargs",
            "instructions",
        )
    },
}
#: Fields that have the same path in the Responses API.
_SAME_FIELD = re.compile(r"(text|reasoning)(\.[a-z_]+)*\Z")
#: A message that begins with the name of the field. SGLang sends such messages in errors without
#: ``param``.
_FIELD_IN_MESSAGE = re.compile(r"([a-z_]+) must (be|has) ")
#: Prefix that FastAPI and SGLang write before the path of a field.
_FIELD_PREFIX = re.compile(r"^(body|sampling_params)\.")


#: Internal addresses that routers write in their messages: addresses with a port, IP addresses, and
#: host names without a public domain.
_ADDRESS = re.compile(
    r"https?://(?:[^\s/\"'()<>]+:\d+|[\d.]+|\[[^\[\]\s]*\]|[^\s./:\"'()<>]+|[^\s/:\"'()<>]+\."
    r"(?:local|internal|svc|lan|cluster))(?=[/\s\"'()<>?#]|$)[^\s\"'()<>]*"
    r"|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
)


class UpstreamDown(BackendError):
    """Error for an upstream that cannot be reached, or whose connection broke."""


class UpstreamErrorFields(Struct):
    message: str = ""
    code: str | None = None
    param: str | None = None


def error_from_response(status: int, body: bytes) -> BackendError:
    """Return the error for an upstream's response with this status and body."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None
    return upstream_error(status, parse_error(value))


def upstream_error(status: int, fields: UpstreamErrorFields) -> BackendError:
    """Return the error for an HTTP status and the parsed fields of the upstream's error."""
    path = _our_field(fields.param)
    if _is_too_long(status, fields) and path != "max_output_tokens":
        return BackendError(
            context_length_exceeded().message,
            code=CONTEXT_LENGTH_EXCEEDED,
            param="input",
            permanent=True,
        )
    status = _STATUS_OF_CODE.get(fields.code or "", status)
    if (
        status == 500 and path is not None
    ):  # within a stream, SGLang reports an invalid request as 500
        status = 400
    if fields.code in _MODERATION_CODES:
        message = _public_text(fields.message) or "It was refused by moderation."
        return BackendError(message, code="image_content_policy_violation", permanent=True)
    if status == 403 and _FLAGGED.search(fields.message):
        status = 400
    if (operator_error := _OPERATOR_ERRORS.get(status)) is not None:
        return BackendError(
            operator_error[1],
            code=operator_error[0],
            permanent=status != _RETRYABLE_STATUS,
            for_operator=True,
        )
    if status >= 500 or status in _TRANSIENT_ERRORS:
        return BackendError(_TRANSIENT_ERRORS.get(status, "The upstream failed."))
    if 400 <= status:
        where = f" (its '{fields.param[:100]}')" if fields.param and path != fields.param else ""
        message = _public_text(fields.message) or f"it answered {status}"
        return BackendError(
            f"The upstream refused the request{where}: {message}",
            code=fields.code if fields.code in _PASSED_ON_CODES else "invalid_prompt",
            param=path,
            permanent=True,
        )
    if 300 <= status < 400:
        return BackendError(
            f"The upstream redirects to another address. {_ASK_OPERATOR}",
            code=_OPERATOR_CODE,
            permanent=True,
            for_operator=True,
        )
    return BackendError(f"The upstream failed: it answered {status}.", permanent=True)


def _public_text(message: str) -> str:
    """Return an upstream's error message in a form that clients may see: shortened, and without
    internal addresses."""
    return _ADDRESS.sub("…", message[:_MAX_MESSAGE])


def _is_too_long(status: int, fields: UpstreamErrorFields) -> bool:
    if fields.code == CONTEXT_LENGTH_EXCEEDED:
        return True
    return status in (400, 413, 422, 500) and _TOO_LONG.search(fields.message) is not None


def _our_field(field: str | None) -> str | None:
    """Return the Responses API field that corresponds to an upstream's request field. Returns None
    if no field corresponds."""
    if not field:
        return None
    field = _FIELD_PREFIX.sub("", field)
    if _SAME_FIELD.match(field):
        return field
    return _OUR_FIELDS.get(re.split(r"[.\[]", field, maxsplit=1)[0])


def parse_error(value: object) -> UpstreamErrorFields:
    """Parse the error in an upstream's response. ``value``: the decoded JSON. It may be OpenAI's
    ``{"error": {…}}``, ``{"error": "text"}``, FastAPI's ``{"detail": …}``, or an object with the
    error's fields."""
    if isinstance(value, Mapping) and value.get("error"):
        value = value["error"]
    if isinstance(value, str):
        return UpstreamErrorFields(message=value)
    if not isinstance(value, Mapping):
        return UpstreamErrorFields()
    message = next((value[key] for key in ("message", "detail", "reason") if value.get(key)), "")
    code = next((value[key] for key in ("code", "type") if isinstance(value.get(key), str)), None)
    if code == "exceed_context_size_error":  # llama-server
        code = CONTEXT_LENGTH_EXCEEDED
    param = value.get("param")
    return UpstreamErrorFields(
        message=message if isinstance(message, str) else _joined_messages(message),
        code=code,
        param=param if isinstance(param, str) else _field_of(message),
    )


def _joined_messages(value: object) -> str:
    """Join FastAPI's validation errors to one text, with the location and the message of each
    error."""
    return "; ".join(
        f"{_dotted_location(fault)}: {fault.get('msg', '')}".strip(": ")
        for fault in _validation_errors(value)
    )


def _field_of(value: object) -> str | None:
    """Return the name of the invalid field, or None if it is unknown. ``value``: an error message,
    which may begin with the name of the field, or FastAPI's validation errors. The location of the
    first validation error is the name of the field."""
    if isinstance(value, str):
        match = _FIELD_IN_MESSAGE.match(value)
        return match[1] if match is not None else None
    return next((_dotted_location(fault) for fault in _validation_errors(value)), None) or None


def _validation_errors(value: object) -> list[Mapping[str, Any]]:
    faults = value if isinstance(value, list) else [value]
    return [fault for fault in faults[:5] if isinstance(fault, Mapping)]


def _dotted_location(fault: Mapping[str, object]) -> str:
    loc = fault.get("loc")
    return ".".join(map(str, loc)) if isinstance(loc, list) else ""
