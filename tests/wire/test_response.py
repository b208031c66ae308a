"""The response object: required fields, absent fields, and clients that parse it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openresponses_types
import pytest
from openai.types.responses import Response as SdkResponse

from antiphon.wire import items as it
from antiphon.wire import response as rs

#: What Open Responses demands of every response, null only where it says so.
ALWAYS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key", "prompt_cache_options",
}  # fmt: skip
MAY_BE_NULL = {
    "completed_at", "incomplete_details", "previous_response_id", "instructions", "error",
    "reasoning", "usage", "max_output_tokens", "max_tool_calls", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip

BEGUN = rs.Response(id="resp_1", created_at=1_700_000_000, model="m")
ENDED = msgspec.structs.replace(
    BEGUN,
    status="completed",
    completed_at=1_700_000_001,
    output=(
        it.Reasoning(id="rs_1", summary=(it.SummaryText(text="s"),)),
        it.Message(id="msg_1", role="assistant", content=(it.OutputText(text="hi"),)),
        it.FunctionCall(id="fc_1", call_id="call_1", name="f", arguments="{}"),
    ),
    reasoning=rs.ReasoningConfig(effort="low"),
    usage=rs.Usage(input_tokens=1, output_tokens=2, total_tokens=3),
    metadata={"a": "b"},
)
FAILED = msgspec.structs.replace(
    BEGUN, status="failed", error=rs.ResponseError(code="server_error", message="m")
)
CUT = msgspec.structs.replace(
    BEGUN, status="incomplete", incomplete_details=rs.IncompleteDetails(reason="max_output_tokens")
)


def encode(response: rs.Response) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(msgspec.json.encode(response))
    return value


@pytest.mark.parametrize("response", [BEGUN, ENDED, FAILED, CUT], ids=lambda r: r.status)
def test_response_is_parsed_by_the_sdk(response: rs.Response) -> None:
    SdkResponse.model_validate_json(msgspec.json.encode(response), strict=True)


@pytest.mark.parametrize("response", [BEGUN, ENDED, FAILED, CUT], ids=lambda r: r.status)
def test_response_conforms_to_open_responses(response: rs.Response) -> None:
    openresponses_types.ResponseResource.model_validate_json(msgspec.json.encode(response))


def test_new_response_has_the_required_fields_only() -> None:
    output = encode(BEGUN)
    assert set(output) == ALWAYS
    assert {name for name, value in output.items() if value is None} == MAY_BE_NULL


def test_times_are_integers() -> None:
    assert isinstance(encode(ENDED)["created_at"], int)
    assert isinstance(encode(ENDED)["completed_at"], int)


def test_usage_has_all_fields_without_cached_tokens() -> None:
    assert encode(ENDED)["usage"] == {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    }


def test_reasoning_has_both_keys_and_text_no_verbosity() -> None:
    assert encode(ENDED)["reasoning"] == {"effort": "low", "summary": None}
    assert encode(ENDED)["text"] == {"format": {"type": "text"}}
