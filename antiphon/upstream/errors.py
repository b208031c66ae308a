"""What an upstream says when it refuses, in our words and with our codes.

One place knows the many shapes in which servers tell of errors. What they say of keys is not passed
on, nor anything else that is between the operator and the upstream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, BackendError, context_length_exceeded

__all__ = ["GIVEN_UP", "complaint", "refusal", "refused"]

#: Why an answer ended, where its server gave it up (vLLM, SGLang, TensorRT-LLM, OpenRouter,
#: DeepSeek): it is not whole, whatever was said.
GIVEN_UP = frozenset({"abort", "cancelled", "error", "insufficient_system_resource", "timeout"})

#: How servers say that the context is too small (llama-server, vLLM, SGLang, TensorRT-LLM, hosted).
_LONG = re.compile(
    r"context[ _](length|window|size)|max_model_len|max_position_embeddings|prompt is too long"
    r"|(input|prompt|request)\b.{0,60}\b(too long|exceeds?\b.{0,40}\b(tokens|length|limit))",
    re.IGNORECASE | re.DOTALL,
)
#: How gateways say that it is the text they mind; some do it with a 403 (OpenRouter).
_FLAGGED = re.compile(r"\bflagged\b|\bmoderation\b|content[ _](policy|filter)", re.IGNORECASE)
_MOST_TEXT = 1000
#: How images are said to be against the rules.
_MODERATED = frozenset({"moderation_blocked", "content_policy_violation"})

#: HTTP status → code and text of what has nothing to do with what was asked.
_OURS: Mapping[int, tuple[str, str]] = {
    401: ("server_error", "The upstream does not accept this server's key."),
    402: ("server_error", "The upstream wants to be paid first."),
    403: ("server_error", "The upstream does not let this server use the model."),
    404: ("server_error", "The upstream has no such model or address."),
    405: ("server_error", "The upstream does not speak this API."),
    407: ("server_error", "A proxy before the upstream refuses this server."),
    429: ("rate_limit_exceeded", "The upstream is asked too much at the moment."),
}
#: Of these the ones that may pass.
_PASSING = 429
#: The same by the code that an error in the middle of a stream may have instead.
_CODES: Mapping[str, int] = {
    "rate_limit_exceeded": 429,
    "invalid_api_key": 401,
    "insufficient_quota": 402,
}
#: Codes of OpenAI's that say of a request what is wrong with it; they mean the same here.
_KEPT = frozenset({"invalid_type", "invalid_value", "unsupported_parameter", "unsupported_value"})

#: First names of the fields that servers complain of → ours. What is called the same is itself.
_PATHS: Mapping[str, str] = {
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
#: Those whose insides are as ours.
_SAME = re.compile(r"(text|reasoning)(\.[a-z_]+)*\Z")
#: How a complaint begins that has no other place for the field (SGLang).
_BEGINS = re.compile(r"([a-z_]+) must (be|has) ")
#: Before the field where the whole is named (FastAPI, SGLang).
_BEFORE = re.compile(r"^(body|sampling_params)\.")


class _Said(Struct):
    message: str = ""
    code: str | None = None
    param: str | None = None


def refusal(status: int, body: bytes) -> BackendError:
    """The error for an answer with this status and body."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = None
    return refused(status, complaint(value))


def refused(status: int, said: _Said) -> BackendError:
    """The error for a status and what was said with it."""
    path = _path(said.param)
    if _is_too_long(status, said) and path != "max_output_tokens":
        return BackendError(
            context_length_exceeded().message,
            code=CONTEXT_LENGTH_EXCEEDED,
            param="input",
            lasting=True,
        )
    status = _CODES.get(said.code or "", status)
    if status == 500 and path is not None:  # SGLang's stream of a response calls it its own
        status = 400
    if said.code in _MODERATED:
        told = said.message[:_MOST_TEXT] or "It was refused by moderation."
        return BackendError(told, code="image_content_policy_violation", lasting=True)
    if status == 403 and _FLAGGED.search(said.message):
        status = 400
    if (ours := _OURS.get(status)) is not None:
        return BackendError(ours[1], code=ours[0], lasting=status != _PASSING)
    if 400 <= status < 500:
        where = f" (its '{said.param[:100]}')" if said.param and path != said.param else ""
        told = said.message[:_MOST_TEXT] or f"it answered {status}"
        return BackendError(
            f"The upstream refused the request{where}: {told}",
            code=said.code if said.code in _KEPT else "invalid_prompt",
            param=path,
            lasting=True,
        )
    return BackendError("The upstream failed.")


def _is_too_long(status: int, said: _Said) -> bool:
    if said.code == CONTEXT_LENGTH_EXCEEDED:
        return True
    return status in (400, 413, 422, 500) and _LONG.search(said.message) is not None


def _path(theirs: str | None) -> str | None:
    """Where that field is in a request of ours, if it is."""
    if not theirs:
        return None
    theirs = _BEFORE.sub("", theirs)
    if _SAME.match(theirs):
        return theirs
    return _PATHS.get(re.split(r"[.\[]", theirs, maxsplit=1)[0])


def complaint(value: Any) -> _Said:
    """What an error says: ``{"error": {…}}`` as OpenAI has it, a text in its place, FastAPI's
    ``detail``, or fields at the top."""
    if isinstance(value, Mapping) and value.get("error"):
        value = value["error"]
    if isinstance(value, str):
        return _Said(message=value)
    if not isinstance(value, Mapping):
        return _Said()
    message = next((value[key] for key in ("message", "detail", "reason") if value.get(key)), "")
    code = next((value[key] for key in ("code", "type") if isinstance(value.get(key), str)), None)
    if code == "exceed_context_size_error":  # llama-server
        code = CONTEXT_LENGTH_EXCEEDED
    param = value.get("param")
    return _Said(
        message=message if isinstance(message, str) else _text(message),
        code=code,
        param=param if isinstance(param, str) else _place(message),
    )


def _text(value: Any) -> str:
    """FastAPI's list of what is wrong: where, and what."""
    return "; ".join(
        f"{_dotted(fault)}: {fault.get('msg', '')}".strip(": ") for fault in _faults(value)
    )


def _place(value: Any) -> str | None:
    """Where FastAPI's first fault is, or the field that a text begins with."""
    if isinstance(value, str):
        begins = _BEGINS.match(value)
        return begins[1] if begins is not None else None
    return next((_dotted(fault) for fault in _faults(value)), None) or None


def _faults(value: Any) -> list[Mapping[str, Any]]:
    faults = value if isinstance(value, list) else [value]
    return [fault for fault in faults[:5] if isinstance(fault, Mapping)]


def _dotted(fault: Mapping[str, Any]) -> str:
    loc = fault.get("loc")
    return ".".join(map(str, loc)) if isinstance(loc, list) else ""
