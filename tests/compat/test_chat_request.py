"""Parsing of Chat Completions requests: any body is either a request or a short 400."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.compat.chat_request import ChatRequest, parse_chat_request
from antiphon.compat.error_paths import ErrorPaths
from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from tests.wire.test_fuzz import JSON, check_error, mutated, property_test

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    {"id": "call_2", "type": "custom", "custom": {"name": "g", "input": "x"}},
]
PARTS: list[dict[str, Any]] = [
    {"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA==", "detail": "low"}},
    {"type": "image_url", "image_url": "data:image/png;base64,eA=="},
    {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}},
    {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,eA=="}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,eA=="}},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
    {"role": "user", "content": PARTS, "name": "ada"},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "no"}],
        "reasoning_content": "hmm",
        "refusal": "no",
        "tool_calls": CALLS,
        "annotations": [],
        "audio": None,
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "x"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "x"}]},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    {"role": "function", "name": "f", "content": "x"},
]
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
SAMPLE: dict[str, Any] = {
    "model": "tiny",
    "messages": MESSAGES,
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}},
        {"type": "custom", "custom": {"name": "g", "format": GRAMMAR}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
    "reasoning_effort": "low",
    "verbosity": "low",
    "logprobs": True,
    "top_logprobs": 2,
    "max_completion_tokens": 5,
    "stop": ["a"],
    "logit_bias": {"1": 2},
    "n": 1,
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False},
    "store": False,
    "metadata": {"a": "b"},
}
LEGACY = {
    "functions": [{"name": "f", "parameters": {}}],
    "function_call": {"name": "f"},
    "max_tokens": 5,
}


def read(value: Any) -> ChatRequest | None:
    try:
        return parse_chat_request(json.dumps(value).encode())
    except InvalidRequest as error:
        check_error(error)
        assert not (error.param or "").startswith("input")
        return None


@property_test
@given(JSON)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    read(value)


@property_test
@given(mutated(SAMPLE))
def test_mutated_request_is_parsed_or_refused(value: Any) -> None:
    read(value)


@property_test
@given(mutated({"messages": MESSAGES, **LEGACY}))
def test_mutated_legacy_request_is_parsed_or_refused(value: Any) -> None:
    read(value)


@property_test
@given(st.sampled_from(MESSAGES).flatmap(mutated))
def test_mutated_message_is_parsed_or_refused(value: Any) -> None:
    read({"messages": [*MESSAGES, value]})


def test_every_field_is_translated() -> None:
    chat = read(SAMPLE)
    assert chat is not None and chat.include_usage and not chat.legacy
    (request,) = chat.requests
    assert request.store is False and request.stream is True
    assert request.include == ("message.output_text.logprobs",) and request.top_logprobs == 2
    assert request.text is not None and request.text.verbosity == "low"
    assert request.text.format.__struct_config__.tag == "json_schema"
    assert request.reasoning is not None and request.reasoning.effort == "low"
    items = request.input or ()
    assert [type(item) for item in items] == [
        it.Message,
        it.Message,
        it.Message,
        it.Reasoning,
        it.Message,
        it.FunctionCall,
        it.CustomToolCall,
        it.FunctionCallOutput,
        it.CustomToolCallOutput,
        it.FunctionCall,
        it.FunctionCallOutput,
    ]
    user = items[2]
    assert isinstance(user, it.Message) and [
        part.__struct_config__.tag for part in user.content
    ] == [
        "input_text",
        "input_image",
        "input_image",
        "input_audio",
        "input_file",
        "input_video",
    ]


def test_reused_call_id_becomes_a_new_call() -> None:
    call = {"role": "assistant", "tool_calls": CALLS[:1]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    chat = read({"messages": [call, result, call, result]})
    assert chat is not None
    ids = [item.call_id for item in chat.requests[0].input or () if hasattr(item, "call_id")]
    assert ids[0] == ids[1] == "call_1"
    assert ids[2] == ids[3] != "call_1"


def test_error_path_replaces_the_longest_known_prefix() -> None:
    paths = ErrorPaths(input="messages")
    paths.add("input[1]", "messages[0].tool_calls[0].function")
    assert paths.client_path("input") == "messages"
    assert paths.client_path("input[0].role") == "messages[0].role"
    assert paths.client_path("input[1].name") == "messages[0].tool_calls[0].function.name"
    assert paths.client_path("input[11]") == "messages[11]"
    assert paths.client_path("inputs") == "inputs"
    assert paths.client_path("model") == "model"
