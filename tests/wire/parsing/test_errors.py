"""Validation errors: status, code, path and message as at OpenAI. Short for any input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.requests import (
    BodyLimits,
    parse_create_response,
    parse_input_tokens_request,
)

#: As long as ids of this server.
LONG_ID = "msg_" + "0" * 48
USER = {"role": "user", "content": "hi"}
F = {"type": "function", "name": "f"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def parse_error(body: bytes, limits: BodyLimits | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_create_response(body, limits or BodyLimits())
    error = caught.value
    assert error.status == 400
    assert len(error.message) < 800
    assert len(error.param or "") < 200
    return error


def request_body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def case(
    fields: dict[str, Any], param: str, code: str | None, message: str
) -> tuple[dict[str, Any], str, str | None, str]:
    return fields, param, code, message


MISSING = "missing_required_parameter"
TYPE = "invalid_type"
VALUE = "invalid_value"

CASES = [
    # presence
    case({"input": None}, "input", MISSING, "Missing required parameter: 'input'."),
    case(
        {"input": [{"content": "hi"}]},
        "input[0].type",
        MISSING,
        "Missing required parameter: 'input[0].type'.",
    ),
    case(
        {"input": [{"type": "computer_call_output", "call_id": "c", "output": {"file_id": "f"}}]},
        "input[0].output.type",
        MISSING,
        "Missing required parameter: 'input[0].output.type'.",
    ),
    case(
        {"input": [{"type": "message", "content": "hi"}]},
        "input[0].role",
        MISSING,
        "Missing required parameter: 'input[0].role'.",
    ),
    case(
        {"input": [USER, {"role": "assistant", "content": None}]},
        "input[1].content",
        MISSING,
        "Missing required parameter: 'input[1].content'.",
    ),
    case(
        {"input": [{"type": "item_reference"}]},
        "input[0].id",
        MISSING,
        "Missing required parameter: 'input[0].id'.",
    ),
    case(
        {"input": [{**CALL, "call_id": None}]},
        "input[0].call_id",
        MISSING,
        "Missing required parameter: 'input[0].call_id'.",
    ),
    case(
        {"input": [{**CALL, "caller": {"type": "program"}}]},
        "input[0].caller.caller_id",
        MISSING,
        "Missing required parameter: 'input[0].caller.caller_id'.",
    ),
    case(
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input[0].content[0].text",
        MISSING,
        "Missing required parameter: 'input[0].content[0].text'.",
    ),
    case(
        {"input": [{"role": "user", "content": [{"text": "hi"}]}]},
        "input[0].content[0].type",
        MISSING,
        "Missing required parameter: 'input[0].content[0].type'.",
    ),
    case(
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": None}]}]},
        "input[0].content[0].image_url",
        MISSING,
        "Missing required parameter: 'input[0].content[0].image_url'.",
    ),
    case(
        {"input": [{"role": "user", "content": [{"type": "input_file", "filename": "a"}]}]},
        "input[0].content[0].file_data",
        MISSING,
        "Missing required parameter: 'input[0].content[0].file_data'.",
    ),
    case(
        {"tools": [{"type": "namespace", "name": "n"}]},
        "tools[0].tools",
        MISSING,
        "Missing required parameter: 'tools[0].tools'.",
    ),
    case(
        {"tool_choice": {"type": "function"}, "tools": [F]},
        "tool_choice.name",
        MISSING,
        "Missing required parameter: 'tool_choice.name'.",
    ),
    case(
        {"tool_choice": {"name": "f"}, "tools": [F]},
        "tool_choice.type",
        MISSING,
        "Missing required parameter: 'tool_choice.type'.",
    ),
    case(
        {"tool_choice": {"type": "allowed_tools", "tools": [F]}, "tools": [F]},
        "tool_choice.mode",
        MISSING,
        "Missing required parameter: 'tool_choice.mode'.",
    ),
    case(
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "text.format.name",
        MISSING,
        "Missing required parameter: 'text.format.name'.",
    ),
    case(
        {"text": {"format": {"type": "json_schema", "name": "n"}}},
        "text.format.schema",
        MISSING,
        "Missing required parameter: 'text.format.schema'.",
    ),
    case(
        {"conversation": {}},
        "conversation.id",
        MISSING,
        "Missing required parameter: 'conversation.id'.",
    ),
    # types
    case(
        {"input": 7},
        "input",
        TYPE,
        "Invalid type for 'input': expected a string or an array, but got an integer instead.",
    ),
    case(
        {"input": ["hi"]},
        "input[0]",
        TYPE,
        "Invalid type for 'input[0]': expected an object, but got a string instead.",
    ),
    case(
        {"input": [{"role": "user", "content": {"type": "input_text", "text": "hi"}}]},
        "input[0].content",
        TYPE,
        "Invalid type for 'input[0].content': expected a string or an array, "
        "but got an object instead.",
    ),
    case(
        {"input": [{**CALL, "arguments": {"a": 1}}]},
        "input[0].arguments",
        TYPE,
        "Invalid type for 'input[0].arguments': expected a string, but got an object instead.",
    ),
    case(
        {"input": [{**USER, "id": 7}]},
        "input[0].id",
        TYPE,
        "Invalid type for 'input[0].id': expected a string, but got an integer instead.",
    ),
    case(
        {"input": [{"type": "function_call_output", "call_id": "c", "output": 7}]},
        "input[0].output",
        TYPE,
        "Invalid type for 'input[0].output': expected a string or an array, "
        "but got an integer instead.",
    ),
    case(
        {"input": [{"type": "reasoning", "summary": "s"}]},
        "input[0].summary",
        TYPE,
        "Invalid type for 'input[0].summary': expected an array, but got a string instead.",
    ),
    case(
        {"temperature": "hot"},
        "temperature",
        TYPE,
        "Invalid type for 'temperature': expected a decimal, but got a string instead.",
    ),
    case(
        {"max_output_tokens": 1.5},
        "max_output_tokens",
        TYPE,
        "Invalid type for 'max_output_tokens': expected an integer, but got a decimal instead.",
    ),
    case(
        {"stream": "true"},
        "stream",
        TYPE,
        "Invalid type for 'stream': expected a boolean, but got a string instead.",
    ),
    case(
        {"max_tool_calls": True},
        "max_tool_calls",
        TYPE,
        "Invalid type for 'max_tool_calls': expected an integer, but got a boolean instead.",
    ),
    case(
        {"metadata": {"a": "b", "n": 7}},
        "metadata.n",
        TYPE,
        "Invalid type for 'metadata.n': expected a string, but got an integer instead.",
    ),
    case(
        {"metadata": []},
        "metadata",
        TYPE,
        "Invalid type for 'metadata': expected an object, but got an array instead.",
    ),
    case(
        {"tools": {"type": "function"}},
        "tools",
        TYPE,
        "Invalid type for 'tools': expected an array, but got an object instead.",
    ),
    case(
        {"tools": ["web_search"]},
        "tools[0]",
        TYPE,
        "Invalid type for 'tools[0]': expected an object, but got a string instead.",
    ),
    case(
        {"tools": [{**F, "parameters": "{}"}]},
        "tools[0].parameters",
        TYPE,
        "Invalid type for 'tools[0].parameters': expected an object, but got a string instead.",
    ),
    case(
        {"tool_choice": ["f"]},
        "tool_choice",
        TYPE,
        "Invalid type for 'tool_choice': expected a string or an object, but got an array instead.",
    ),
    case(
        {"text": "json"},
        "text",
        TYPE,
        "Invalid type for 'text': expected an object, but got a string instead.",
    ),
    case(
        {"reasoning": "low"},
        "reasoning",
        TYPE,
        "Invalid type for 'reasoning': expected an object, but got a string instead.",
    ),
    case(
        {"include": "reasoning.encrypted_content"},
        "include",
        TYPE,
        "Invalid type for 'include': expected an array, but got a string instead.",
    ),
    case(
        {"conversation": 7},
        "conversation",
        TYPE,
        "Invalid type for 'conversation': expected a string or an object, "
        "but got an integer instead.",
    ),
    case(
        {"stream": True, "stream_options": {"include_obfuscation": "no"}},
        "stream_options.include_obfuscation",
        TYPE,
        "Invalid type for 'stream_options.include_obfuscation': expected a boolean, "
        "but got a string instead.",
    ),
    # values
    case(
        {"input": [{"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]}]},
        "input[0].content[0]",
        VALUE,
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    case(
        {"input": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "input[1].content[0].type",
        VALUE,
        "Invalid value: 'image_url'. Supported values are: 'input_text', ",
    ),
    case(
        {"input": [{"role": "tool", "content": "1"}]},
        "input[0].role",
        VALUE,
        "Invalid value: 'tool'. Supported values are: "
        "'user', 'assistant', 'system', and 'developer'.",
    ),
    case(
        {"input": [{"type": "gossip"}]},
        "input[0].type",
        VALUE,
        "Invalid value: 'gossip'. Supported values are: 'message', ",
    ),
    case(
        {"input": [{**CALL, "status": "done"}]},
        "input[0].status",
        VALUE,
        "Invalid value: 'done'. Supported values are: "
        "'in_progress', 'completed', and 'incomplete'.",
    ),
    case(
        {"input": [{"type": ["message"], "role": "user", "content": "hi"}]},
        "input[0].type",
        TYPE,
        "Invalid type for 'input[0].type': expected a string, but got an array instead.",
    ),
    case(
        {"input": [{"role": "user", "content": [{"type": {}}]}]},
        "input[0].content[0].type",
        TYPE,
        "Invalid type for 'input[0].content[0].type': expected a string, "
        "but got an object instead.",
    ),
    case(
        {"tools": [{"type": []}]},
        "tools[0].type",
        TYPE,
        "Invalid type for 'tools[0].type': expected a string, but got an array instead.",
    ),
    case(
        {"tools": [F, {"type": "retrieval"}]},
        "tools[1].type",
        VALUE,
        "Invalid value: 'retrieval'. Supported values are: 'function', ",
    ),
    case(
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "shell"}]}]},
        "tools[0].tools[0].type",
        VALUE,
        "Invalid value: 'shell'. Supported values are: 'function' and 'custom'.",
    ),
    case(
        {"tools": [{"type": "web_search", "search_context_size": "huge"}]},
        "tools[0].search_context_size",
        VALUE,
        "Invalid value: 'huge'. Supported values are: 'low', 'medium', and 'high'.",
    ),
    case(
        {"tool_choice": "any"},
        "tool_choice",
        VALUE,
        "Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
    ),
    case(
        {"tool_choice": {"type": "tool", "name": "f"}},
        "tool_choice.type",
        VALUE,
        "Invalid value: 'tool'. Supported values are: 'function', ",
    ),
    case(
        {"tool_choice": {"type": {}}},
        "tool_choice.type",
        TYPE,
        "Invalid type for 'tool_choice.type': expected a string, but got an object instead.",
    ),
    case(
        {"include": ["reasoning.encrypted_content", "everything"]},
        "include[1]",
        VALUE,
        "Invalid value: 'everything'. Supported values are: 'file_search_call.results', ",
    ),
    case(
        {"truncation": "middle"},
        "truncation",
        VALUE,
        "Invalid value: 'middle'. Supported values are: 'auto' and 'disabled'.",
    ),
    case(
        {"reasoning": {"effort": "huge"}},
        "reasoning.effort",
        VALUE,
        "Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', "
        "'xhigh', and 'max'.",
    ),
    case(
        {"text": {"verbosity": "chatty"}},
        "text.verbosity",
        VALUE,
        "Invalid value: 'chatty'. Supported values are: 'low', 'medium', and 'high'.",
    ),
    case(
        {"text": {"format": {"type": "xml"}}},
        "text.format.type",
        VALUE,
        "Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
    ),
    case(
        {"service_tier": "gold"},
        "service_tier",
        VALUE,
        "Invalid value: 'gold'. Supported values are: 'auto', ",
    ),
    # bounds
    case(
        {"max_tool_calls": 0},
        "max_tool_calls",
        "integer_below_min_value",
        "Invalid 'max_tool_calls': integer below minimum value. "
        "Expected a value >= 1, but got 0 instead.",
    ),
    case(
        {"max_output_tokens": 0},
        "max_output_tokens",
        "integer_below_min_value",
        "Invalid 'max_output_tokens': integer below minimum value. "
        "Expected a value >= 1, but got 0 instead.",
    ),
    case(
        {"max_output_tokens": 10**30},
        "max_output_tokens",
        "integer_above_max_value",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= ",
    ),
    case(
        {"top_logprobs": 21},
        "top_logprobs",
        "integer_above_max_value",
        "Invalid 'top_logprobs': integer above maximum value. "
        "Expected a value <= 20, but got 21 instead.",
    ),
    case(
        {"top_logprobs": -1},
        "top_logprobs",
        "integer_below_min_value",
        "Invalid 'top_logprobs': integer below minimum value. "
        "Expected a value >= 0, but got -1 instead.",
    ),
    case(
        {"temperature": 2.1},
        "temperature",
        "decimal_above_max_value",
        "Invalid 'temperature': decimal above maximum value. "
        "Expected a value <= 2, but got 2.1 instead.",
    ),
    case(
        {"temperature": -1},
        "temperature",
        "decimal_below_min_value",
        "Invalid 'temperature': decimal below minimum value. "
        "Expected a value >= 0, but got -1 instead.",
    ),
    case(
        {"top_p": 1.5},
        "top_p",
        "decimal_above_max_value",
        "Invalid 'top_p': decimal above maximum value. Expected a value <= 1, but got 1.5 instead.",
    ),
    *(
        case(
            {name: value},
            name,
            "unsupported_parameter",
            f"Unsupported parameter: '{name}' is not supported by this server.",
        )
        for name, value in {
            "n": 2,
            "logprobs": True,
            "guided_json": {},
            "bad_words": ["x"],
            "enable_thinking": False,
        }.items()
    ),
    case(
        {"repetition_penalty": 0},
        "repetition_penalty",
        "decimal_below_min_value",
        "Invalid 'repetition_penalty': decimal below minimum value. "
        "Expected a value > 0, but got 0 instead.",
    ),
    case({"seed": 2**63}, "seed", "integer_above_max_value", "Invalid 'seed': integer above "),
    case({"top_k": -2}, "top_k", "integer_below_min_value", "Invalid 'top_k': integer below "),
    case(
        {"logit_bias": {"7": 101}},
        "logit_bias.7",
        "decimal_above_max_value",
        "Invalid 'logit_bias.7': decimal above maximum value. "
        "Expected a value <= 100, but got 101 instead.",
    ),
    case(
        {"logit_bias": {"hello": 1}},
        "logit_bias",
        VALUE,
        "Invalid 'logit_bias': its keys must be token ids.",
    ),
    case(
        {"logit_bias": {"-1": 1}},
        "logit_bias",
        VALUE,
        "Invalid 'logit_bias': its keys must be token ids.",
    ),
    case(
        {"logit_bias": {str(10**30): 1}},
        "logit_bias",
        VALUE,
        "Invalid 'logit_bias': its keys must be token ids.",
    ),
    case(
        {"metadata": {str(number): "" for number in range(17)}},
        "metadata",
        "object_above_max_properties",
        "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
        "but got an object with 17 properties instead.",
    ),
    case(
        {"metadata": {"k" * 65: ""}},
        "metadata",
        "string_above_max_length",
        "Invalid 'metadata': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    case(
        {"metadata": {"k": "v" * 513}},
        "metadata.k",
        "string_above_max_length",
        "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, "
        "but got a string with length 513 instead.",
    ),
    case(
        {"prompt_cache_key": "k" * 65},
        "prompt_cache_key",
        "string_above_max_length",
        "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
    ),
    case(
        {"safety_identifier": "k" * 129},
        "safety_identifier",
        "string_above_max_length",
        "Invalid 'safety_identifier': string too long. Expected a string with maximum length 128, ",
    ),
    case(
        {"previous_response_id": "r" * 10_000},
        "previous_response_id",
        "string_above_max_length",
        "Invalid 'previous_response_id': string too long. ",
    ),
    case({"stop": ["x"] * 17}, "stop", "array_above_max_length", "Invalid 'stop': array too long."),
    case({"stop": [""]}, "stop[0]", "empty_string", "Invalid 'stop[0]': empty string. "),
    case(
        {"input": [{**CALL, "call_id": ""}]},
        "input[0].call_id",
        "empty_string",
        "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, "
        "but got an empty string instead.",
    ),
    case(
        {"input": [{**CALL, "call_id": "c" * 257}]},
        "input[0].call_id",
        "string_above_max_length",
        "Invalid 'input[0].call_id': string too long. ",
    ),
    case(
        {"tools": [{"type": "function", "name": "f" * 129}]},
        "tools[0].name",
        "string_above_max_length",
        "Invalid 'tools[0].name': string too long. Expected a string with maximum length 128, ",
    ),
    case(
        {"tools": [F, F, {"type": "function", "name": "get weather"}]},
        "tools[2].name",
        VALUE,
        "Invalid 'tools[2].name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
    ),
    case(
        {"tools": [{"type": "function", "name": "f\n"}]},
        "tools[0].name",
        VALUE,
        "Invalid 'tools[0].name': string does not match pattern. ",
    ),
    case(
        {"tools": [{"type": "namespace", "name": "n" * 65, "tools": [F]}]},
        "tools[0].name",
        "string_above_max_length",
        "Invalid 'tools[0].name': string too long. Expected a string with maximum length 64, ",
    ),
    case(
        {"tools": [{"type": "file_search", "vector_store_ids": ["v"], "max_num_results": 51}]},
        "tools[0].max_num_results",
        "integer_above_max_value",
        "Invalid 'tools[0].max_num_results': integer above maximum value. "
        "Expected a value <= 50, but got 51 instead.",
    ),
    case(
        {"tools": [{"type": "image_generation", "partial_images": 4}]},
        "tools[0].partial_images",
        "integer_above_max_value",
        "Invalid 'tools[0].partial_images': integer above maximum value. "
        "Expected a value <= 3, but got 4 instead.",
    ),
    case(
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [F]},
        "tool_choice.tools",
        "empty_array",
        "Invalid 'tool_choice.tools': empty array. Expected an array with minimum length 1, "
        "but got an empty array instead.",
    ),
    case(
        {"text": {"format": {"type": "json_schema", "name": "n" * 65, "schema": {}}}},
        "text.format.name",
        "string_above_max_length",
        "Invalid 'text.format.name': string too long. Expected a string with maximum length 64, ",
    ),
    case(
        {"input": []},
        "input",
        "empty_array",
        "Invalid 'input': empty array. Expected an array with minimum length 1, ",
    ),
    # fields together
    case(
        {"previous_response_id": "resp_1", "conversation": "conv_1"},
        "conversation",
        "mutually_exclusive_parameters",
        "Mutually exclusive parameters: 'previous_response_id' and 'conversation'.",
    ),
    case(
        {"background_options": {"completion_window": "soonest"}},
        "background_options",
        None,
        "The 'background_options' parameter is only allowed when 'background' is enabled.",
    ),
    case(
        {"background": True, "background_options": {"completion_window": "1h"}},
        "background_options.completion_window",
        "invalid_value",
        "Invalid value: '1h'. Supported values are: 'soonest', '2h', and '8h'.",
    ),
    case(
        {
            "background": True,
            "stream": True,
            "background_options": {"completion_window": "8h"},
        },
        "background_options.completion_window",
        None,
        "A 'background_options.completion_window' of '8h' cannot be combined with 'stream'.",
    ),
    case(
        {
            "background": True,
            "service_tier": "priority",
            "background_options": {"completion_window": "2h"},
        },
        "background_options.completion_window",
        "invalid_value",
        "A 'background_options.completion_window' of '2h' needs the default 'service_tier'.",
    ),
    case(
        {"access_programs": {"cyber": "red"}},
        "access_programs.cyber",
        "invalid_value",
        "Invalid value: 'red'. Supported values are: 'standard', 'daybreak_blue', and "
        "'daybreak_red'.",
    ),
    case(
        {"stream_options": {"include_obfuscation": False}},
        "stream_options",
        None,
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
    ),
    case(
        {"input": [{**USER, "id": "msg_1"}, {**USER, "id": "msg_1"}]},
        "input",
        None,
        "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.",
    ),
    case(
        {"input": [{**USER, "id": LONG_ID}, {**USER, "id": LONG_ID}]},
        "input",
        None,
        f"Duplicate item found with id {LONG_ID}. Remove duplicate items from your input and try"
        " again.",
    ),
    case(
        {"input": [{"type": "compaction_trigger"}, USER]},
        "input[0]",
        VALUE,
        "A 'compaction_trigger' must be the last item of the input.",
    ),
    case(
        {"tool_choice": {"type": "function", "name": "g"}, "tools": [F]},
        "tool_choice",
        None,
        "Tool choice 'function' not found in 'tools' parameter.",
    ),
    case(
        {"tool_choice": {"type": "web_search_preview"}, "tools": [F]},
        "tool_choice",
        None,
        "Tool choice 'web_search_preview' not found in 'tools' parameter.",
    ),
    case(
        {"tool_choice": {"type": "mcp", "server_label": "d"}, "tools": [F]},
        "tool_choice",
        None,
        "Tool choice 'mcp' not found in 'tools' parameter.",
    ),
    case(
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [F, {"type": "function", "name": "g"}],
            },
            "tools": [F],
        },
        "tool_choice",
        None,
        "Tool choice 'function' not found in 'tools' parameter.",
    ),
    case(
        {"tool_choice": "required"},
        "tool_choice",
        None,
        "Tool choice 'required' must be specified with 'tools' parameter.",
    ),
    # shapes of the Chat Completions API
    case(
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools[0].name",
        MISSING,
        "Missing required parameter: 'tools[0].name'. "
        "This looks like a tool of the Chat Completions API",
    ),
    case(
        {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice.name",
        MISSING,
        "Missing required parameter: 'tool_choice.name'. "
        "This looks like a tool of the Chat Completions API",
    ),
    case(
        {"text": {"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}},
        "text.format.name",
        MISSING,
        "Missing required parameter: 'text.format.name'. "
        "This looks like a format of the Chat Completions API",
    ),
    case(
        {"input": None, "messages": [USER]},
        "messages",
        "unsupported_parameter",
        "Unsupported parameter: 'messages'. In the Responses API, this parameter has moved to "
        "'input'. Try again with the new parameter.",
    ),
    case(
        {"max_tokens": 10},
        "max_tokens",
        "unsupported_parameter",
        "Unsupported parameter: 'max_tokens'. In the Responses API, this parameter has moved to "
        "'max_output_tokens'. Try again with the new parameter.",
    ),
    case(
        {"response_format": {"type": "json_object"}},
        "response_format",
        "unsupported_parameter",
        "Unsupported parameter: 'response_format'. In the Responses API, this parameter has moved "
        "to 'text.format'. Try again with the new parameter.",
    ),
]


@pytest.mark.requirement("API-400", "API-METADATA")
@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    CASES,
    ids=[f"{param}-{code}-{index}" for index, (_, param, code, _) in enumerate(CASES)],
)
def test_error_has_the_path_of_the_field(
    fields: dict[str, Any], param: str, code: str | None, message: str
) -> None:
    error = parse_error(request_body(**fields))
    assert (error.param, error.code) == (param, code)
    assert error.message.startswith(message)


@pytest.mark.parametrize("fields", [{"input": "hi", "text": 7}, {"tools": [{}]}, {"input": 7}])
def test_token_count_has_the_same_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_input_tokens_request(json.dumps(fields).encode())
    expected = parse_error(request_body(**fields))
    assert (caught.value.param, caught.value.code) == (expected.param, expected.code)


#: Stands for five megabytes.
HUGE = "HUGE"


@pytest.mark.requirement("D-61")
@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"type": HUGE}]},
        {"input": [{"role": HUGE, "content": "hi"}]},
        {"input": [{"role": "user", "content": [{"type": HUGE}]}]},
        {"input": [{"role": "user", "content": [{"type": [HUGE] * 3}]}]},
        {"input": [{**CALL, "status": HUGE}]},
        {"input": [{"type": "item_reference", "id": HUGE}] * 2},
        {"tools": [{"type": HUGE}]},
        {"tools": [{"type": "function", "name": HUGE}]},
        {"tool_choice": HUGE},
        {"tool_choice": {"type": [HUGE]}},
        {"include": [HUGE]},
        {"metadata": {HUGE: "x"}},
        {"metadata": {HUGE: 7}},
        {"metadata": HUGE},
        {"logit_bias": {HUGE: 1}},
        {"truncation": HUGE},
        {"temperature": HUGE},
        {"model": HUGE},
        {"previous_response_id": HUGE},
        {"text": {"format": {"type": HUGE}}},
        {"reasoning": {"effort": [HUGE]}},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_error_messages_do_not_repeat_long_input(fields: dict[str, Any]) -> None:
    parse_error(request_body(**fields).replace(HUGE.encode(), b"x" * 5_000_000))
