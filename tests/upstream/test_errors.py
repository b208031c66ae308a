"""Error responses of real servers, with their texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.upstream.errors import error_from_response

CONTEXT = [
    (400, {"error": {"message": "…", "code": "context_length_exceeded", "param": "messages"}}),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size. try increasing the"
                " context size or enable context shift",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 700,
                "n_ctx": 256,
            }
        },
    ),
    (
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested"
            " 5000 tokens in the messages, Please reduce the length of the messages.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
    ),
    (
        400,
        {
            "error": {
                "message": "The input (4200 tokens) is longer than the model's context length"
                " (4096 tokens).",
                "type": "BadRequestError",
            }
        },
    ),
    (
        500,
        {"error": {"message": "The prompt length 900 exceeds max_model_len 512."}},
    ),
]


@pytest.mark.requirement("UP-REFUSED")
@pytest.mark.parametrize(("status", "body"), CONTEXT)
def test_context_length_errors_are_unified(status: int, body: object) -> None:
    error = error_from_response(status, json.dumps(body).encode())
    assert error.code == "context_length_exceeded"
    assert "context window" in error.message


@pytest.mark.requirement("UP-REFUSED")
@pytest.mark.parametrize(
    ("status", "body", "code", "says"),
    [
        (401, {"error": {"message": "Incorrect API key: sk-1234"}}, "invalid_prompt", "key"),
        (403, {"error": "forbidden for sk-1234"}, "invalid_prompt", "denies this server access"),
        (404, {"error": {"message": "The model `x` does not exist."}}, "invalid_prompt", "no such"),
        (402, {"error": {"message": "Insufficient Balance"}}, "insufficient_quota", "no credit"),
        (429, {"error": {"message": "slow down"}}, "rate_limit_exceeded", "rate limit"),
        (500, b"<html>Oops: stack trace</html>", "server_error", "failed"),
        *((status, b"", "server_error", "upstream") for status in (408, 425, 500, 502, 503, 504)),
        *((status, b"", "server_error", "failed") for status in (507, 509, 520, 529, 599)),
        *((status, b"", "invalid_prompt", "operator") for status in (501, 505, 506, 508, 510, 511)),
        (302, b"", "invalid_prompt", "redirects"),
        (400, {"error": {"message": "bad", "param": "odd.one"}}, "invalid_prompt", "'odd.one'"),
        (400, {"error": "model is loading"}, "invalid_prompt", "model is loading"),
        (400, {"message": "no"}, "invalid_prompt", "no"),
        (400, b"nonsense", "invalid_prompt", "answered 400"),
        (
            422,
            {"detail": [{"loc": ["body", "messages", 0], "msg": "Field required"}]},
            "invalid_prompt",
            "body.messages.0: Field required",
        ),
        (422, {"detail": "Unprocessable"}, "invalid_prompt", "Unprocessable"),
        (413, [1, 2], "invalid_prompt", "413"),
    ],
)
def test_error_code_by_status(status: int, body: object, code: str, says: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = error_from_response(status, raw)
    assert error.code == code
    assert says in error.message
    assert "sk-1234" not in error.message and "stack trace" not in error.message


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"type": "invalid_request_error", "code": 400, "retryable": False}),
        (500, {"code": "server_error"}),
    ],
)
def test_field_is_found_in_the_message(status: int, error: dict[str, Any]) -> None:
    """SGLang's message, in streams of ``/generate`` and of responses."""
    body = {"error": {**error, "message": "top_p must be in (0, 1], got 0.0."}}
    result = error_from_response(status, json.dumps(body).encode())
    assert (result.code, result.param, result.permanent) == ("invalid_prompt", "top_p", True)


def test_long_messages_are_truncated() -> None:
    assert len(error_from_response(400, json.dumps({"error": "x" * 10**6}).encode()).message) < 1200


@pytest.mark.requirement("UP-REFUSED")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages[3].content", "input"),
        ("body.messages.0", "input"),
        ("prompt", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("sampling_params.max_new_tokens", "max_output_tokens"),
        ("tools[1].function.name", "tools"),
        ("temperature", "temperature"),
        ("response_format.json_schema", "text.format"),
        ("reasoning.effort", "reasoning.effort"),
        ("text.format.schema", "text.format.schema"),
        ("stream_options", None),
        ("", None),
    ],
)
def test_fields_are_renamed_to_ours(theirs: str, ours: str | None) -> None:
    body = {"error": {"message": "no", "param": theirs}}
    assert error_from_response(400, json.dumps(body).encode()).param == ours


def test_temporary_errors_are_retryable() -> None:
    spent = {"error": {"message": "no credit", "code": "insufficient_quota"}}
    permanent = {401: {}, 400: {}, 404: {}, 429: spent}
    assert all(
        error_from_response(status, json.dumps(b).encode()).permanent
        for status, b in permanent.items()
    )
    assert not any(error_from_response(status, b"").permanent for status in (429, 500, 503))


def test_too_large_max_tokens_is_not_a_context_error() -> None:
    """vLLM's message."""
    message = (
        "max_tokens=5000 cannot be greater than max_model_len=1024. Please request fewer output"
        " tokens. (parameter=max_tokens, value=5000)"
    )
    output = {"message": message, "type": "BadRequestError", "param": "max_tokens", "code": 400}
    error = error_from_response(400, json.dumps({"error": output}).encode())
    assert (error.code, error.param) == ("invalid_prompt", "max_output_tokens")
