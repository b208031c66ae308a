"""Requests as real clients send them are accepted and normalized."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire import tools as tl
from antiphon.wire.parsing.requests import parse_create_response, parse_input_tokens_request
from antiphon.wire.request import CreateResponse, InputTokensRequest, StreamOptions
from antiphon.wire.response import JsonSchemaFormat, ReasoningConfig, TextConfig


def parse_request(**fields: Any) -> CreateResponse:
    return parse_create_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def parse_item(item: Any) -> it.Item:
    request = parse_request(input=[item])
    assert request.input is not None
    (decoded,) = request.input
    return decoded


USER = it.Message(role="user", content=(it.InputText(text="hi"),))


# --- messages ------------------------------------------------------------------------------------


def test_string_input_becomes_a_user_message() -> None:
    assert parse_request(input="hi").input == (USER,)


def test_empty_input_and_one_output_token_are_accepted() -> None:
    request = parse_request(input="", max_output_tokens=1)
    assert request.input == (it.Message(role="user", content=(it.InputText(text=""),)),)
    assert request.max_output_tokens == 1


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_item_with_a_role_defaults_to_a_message(role: str) -> None:
    assert parse_item({"role": role, "content": "hi"}) == it.Message(
        role=role,  # type: ignore[arg-type]
        content=(it.InputText(text="hi"),),
    )
    assert parse_item({"type": None, "role": role, "content": "hi"}) == parse_item(
        {"role": role, "content": "hi"}
    )


def test_assistant_content_may_be_a_string() -> None:
    assert parse_item({"role": "assistant", "content": "hi"}) == it.Message(
        role="assistant", content=(it.OutputText(text="hi"),)
    )


def test_assistant_message_needs_no_annotations_id_or_status() -> None:
    bare = {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    full = {
        "type": "message",
        "id": None,
        "role": "assistant",
        "status": None,
        "phase": None,
        "content": [{"type": "output_text", "text": "hi", "annotations": None, "logprobs": None}],
    }
    assert (
        parse_item(bare) == parse_item(full) == parse_item({"role": "assistant", "content": "hi"})
    )


def test_logprobs_may_lack_bytes_and_alternatives() -> None:
    part = {
        "type": "output_text",
        "text": "hi",
        "logprobs": [
            {"token": "hi", "logprob": -1, "bytes": None, "top_logprobs": None},
            {
                "token": "!",
                "logprob": -1,
                "top_logprobs": [{"token": "!", "logprob": -1, "bytes": None}],
            },
        ],
    }
    message = parse_item({"role": "assistant", "content": [part]})
    assert isinstance(message, it.Message)
    assert message.content == (
        it.OutputText(
            text="hi",
            logprobs=(
                it.Logprob(token="hi", logprob=-1),
                it.Logprob(
                    token="!", logprob=-1, top_logprobs=(it.TopLogprob(token="!", logprob=-1),)
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("annotations", "path"),
    [("x", "annotations"), ([None], "annotations[0]"), ([{}, 1], "annotations[1]")],
)
def test_annotations_are_objects(annotations: Any, path: str) -> None:
    part = {"type": "output_text", "text": "hi", "annotations": annotations}
    with pytest.raises(InvalidRequest) as caught:
        parse_request(input=[{"role": "assistant", "content": [part]}])
    assert caught.value.param == f"input[0].content[0].{path}"


def test_unknown_annotations_are_dropped() -> None:
    known = {"type": "file_path", "file_id": "file_1", "index": 0}
    message = parse_item(
        {
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "hi",
                    "annotations": [{"type": "acme:note"}, known, {"type": "file_path"}],
                }
            ],
        }
    )
    assert isinstance(message, it.Message)
    assert message.content == (
        it.OutputText(text="hi", annotations=(it.FilePath(file_id="file_1", index=0),)),
    )


def test_image_detail_defaults_to_auto() -> None:
    message = parse_item(
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    )
    assert message == it.Message(
        role="user", content=(it.InputImage(image_url="data:,", detail="auto"),)
    )


@pytest.mark.parametrize(
    "item_id", ["msg_" + "a" * 200, "6e9d…", "fco_1", "msg_550e8400-e29b-41d4-a716-446655440000"]
)
def test_foreign_item_id_is_kept(item_id: str) -> None:
    assert parse_item({"role": "user", "content": "hi", "id": item_id}).id == item_id


@pytest.mark.parametrize("empty", [None, ""])
def test_missing_id_is_empty(empty: str | None) -> None:
    assert parse_item({"role": "user", "content": "hi", "id": empty}).id == ""


@pytest.mark.parametrize(
    "reference",
    [{"id": "rs_1"}, {"type": "item_reference", "id": "rs_1"}, {"type": None, "id": "rs_1"}],
)
def test_item_with_only_an_id_is_a_reference(reference: Any) -> None:
    assert parse_item(reference) == it.ItemReference(id="rs_1")


# --- other items ---------------------------------------------------------------------------------


def test_reasoning_may_be_encrypted_content_only() -> None:
    sealed = it.Reasoning(encrypted_content="sealed")
    assert parse_item({"type": "reasoning", "encrypted_content": "sealed"}) == sealed
    assert parse_item({"type": "reasoning", "encrypted_content": "sealed", "summary": []}) == sealed
    assert (
        parse_item(
            {"type": "reasoning", "encrypted_content": "sealed", "content": None, "id": None}
        )
        == sealed
    )
    assert parse_item({"type": "reasoning", "encrypted_content": "sealed", "content": []}) == sealed


def test_invalid_json_arguments_are_accepted() -> None:
    call = parse_item(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{broken"}
    )
    assert isinstance(call, it.FunctionCall)
    assert call.arguments == "{broken"


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_tool_output_is_text_or_parts(kind: str) -> None:
    base = {"type": kind, "call_id": "c", "status": None}
    assert parse_item({**base, "output": "1"}).output == "1"  # type: ignore[union-attr]
    parts = [
        {"type": "input_text", "text": "1"},
        {"type": "input_image", "image_url": "data:,"},
        {"type": "input_file", "file_id": "file_1", "filename": None},
    ]
    assert parse_item({**base, "output": parts}).output == (  # type: ignore[union-attr]
        it.InputText(text="1"),
        it.InputImage(image_url="data:,"),
        it.InputFile(file_id="file_1"),
    )


def test_mcp_approval_round_trips() -> None:
    request = parse_request(
        input=[
            {
                "type": "mcp_list_tools",
                "id": "mcpl_1",
                "server_label": "d",
                "tools": [
                    {
                        "name": "read",
                        "input_schema": {"default": None},
                        "description": None,
                        "annotations": None,
                    }
                ],
                "error": None,
            },
            {
                "type": "mcp_approval_request",
                "id": "mcpr_1",
                "server_label": "d",
                "name": "read",
                "arguments": "{}",
            },
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        ]
    )
    assert request.input is not None
    listed = request.input[0]
    assert isinstance(listed, it.McpListTools)
    assert listed.tools == ({"name": "read", "input_schema": {"default": None}},)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [name for name in CreateResponse.__struct_fields__ if name not in ("input", "model", "tools")],
)
def test_null_means_not_given(name: str) -> None:
    assert parse_request(**{name: None}) == parse_request()


def test_model_is_optional() -> None:
    assert parse_create_response(b'{"input":"hi"}').model is None
    assert parse_create_response(b'{"input":"hi","model":null}').model is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"include": []}, {"include": ()}),
        ({"metadata": {}}, {"metadata": {}}),
        ({"text": {}}, {"text": TextConfig()}),
        ({"text": {"format": None, "verbosity": None}}, {"text": TextConfig()}),
        ({"reasoning": {}}, {"reasoning": ReasoningConfig()}),
        ({"reasoning": {"effort": None, "summary": None}}, {"reasoning": ReasoningConfig()}),
        ({"tools": []}, {"tools": ()}),
        ({"tools": None}, {"tools": ()}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["A", "B"]}, {"stop": ("A", "B")}),
        ({"logit_bias": {"50256": -100, "7": 1.5}}, {"logit_bias": {50256: -100.0, 7: 1.5}}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_k": 20, "min_p": 0.1, "seed": 7}, {"top_k": 20, "min_p": 0.1, "seed": 7}),
        ({"max_output_tokens": 1}, {"max_output_tokens": 1}),
        (
            {"chat_template_kwargs": {"enable_thinking": False, "x": None}},
            {"chat_template_kwargs": {"enable_thinking": False, "x": None}},
        ),
        ({"client_metadata": {"a": 1}}, {"client_metadata": {"a": 1}}),
    ],
)
def test_empty_and_short_forms_are_accepted(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    request = parse_request(**fields)
    for name, value in expected.items():
        assert getattr(request, name) == value


def test_every_field_is_parsed() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.",
        "previous_response_id": "resp_1",
        "parallel_tool_calls": False,
        "max_tool_calls": 1,
        "max_output_tokens": 16,
        "temperature": 2.0,
        "top_p": 1.0,
        "top_logprobs": 20,
        "store": False,
        "stream": True,
        "background": False,
        "truncation": "auto",
        "metadata": {"k" * 64: "v" * 512},
        "prompt_cache_key": "k" * 64,
        "prompt_cache_retention": "24h",
        "safety_identifier": "s" * 128,
        "service_tier": "flex",
        "user": "u",
        "presence_penalty": -2.0,
        "frequency_penalty": 2.0,
        "repetition_penalty": 1.1,
    }
    request = parse_request(**fields)
    assert {name: getattr(request, name) for name in fields} == fields
    padded = parse_request(stream=True, stream_options={"include_obfuscation": False})
    assert padded.stream_options == StreamOptions(include_obfuscation=False)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
def test_every_reasoning_effort_is_accepted(effort: Any) -> None:
    assert parse_request(reasoning={"effort": effort}).reasoning == ReasoningConfig(effort=effort)


def test_text_format_keeps_its_schema() -> None:
    schema = {"type": "object", "default": None}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": None}
    text = parse_request(text={"format": form, "verbosity": "low"}).text
    assert text == TextConfig(format=JsonSchemaFormat(name="n", schema=schema), verbosity="low")


def test_text_format_and_forced_tool_may_be_combined() -> None:
    request = parse_request(
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        tools=[{"type": "function", "name": "f", "parameters": {}}],
        tool_choice={"type": "function", "name": "f"},
    )
    assert request.tool_choice == tl.ToolChoiceObject(type="function", name="f")


def test_fields_of_other_apis_without_effect_are_accepted() -> None:
    idle = {"n": 1, "best_of": 1, "logprobs": False, "use_beam_search": False, "min_tokens": 0}
    assert parse_create_response(json.dumps({"input": "hi", **idle}).encode()).input is not None


def test_unknown_fields_are_ignored_and_named() -> None:
    unknown = {"generate": True, "stream_id": "s", "extra_body": {"a": [None]}, "acme": 1}
    neutral = {"n": 1, "echo": False, "empty": [], "nothing": None}
    request = parse_request(**unknown, **neutral, ignored_fields=["mine"])
    assert request.ignored_fields == (*unknown, "ignored_fields")
    assert replace(request, ignored_fields=()) == parse_request()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_output_token", "max_output_tokens"),
        ("maxOutputTokens", "max_output_tokens"),
        ("temprature", "temperature"),
        ("top-p", "top_p"),
        ("instruction", "instructions"),
        ("previous_response", "previous_response_id"),
        ("tool", "tools"),
    ],
)
def test_misspelt_fields_are_refused(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=f"Did you mean '{meant}'?") as refused:
        parse_request(**{name: 1})
    assert (refused.value.param, refused.value.code) == (name, "unknown_parameter")


@pytest.mark.parametrize(
    ("name", "neutral", "value"),
    [
        ("return_token_ids", False, True),
        ("continue_final_message", False, True),
        ("add_generation_prompt", True, False),
        ("chat_template_content_format", "auto", "string"),
    ],
)
def test_fields_of_chat_servers_are_refused_by_name(name: str, neutral: Any, value: Any) -> None:
    assert parse_request(**{name: neutral}) == parse_request()
    with pytest.raises(InvalidRequest) as refused:
        parse_request(**{name: value})
    assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "web_search", "filters": None, "user_location": None},
        {"type": "image_generation"},
        {"type": "tool_search"},
        {"type": "local_shell"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "code_interpreter", "container": "cntr_1"},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}],
        },
        {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
    ],
    ids=json.dumps,
)
def test_hosted_tools_and_functions_may_be_combined(tool: Any) -> None:
    function = {"type": "function", "name": "g", "parameters": {"type": "object"}, "strict": None}
    request = parse_request(tools=[tool, function])
    assert len(request.tools) == 2


@pytest.mark.parametrize("strict", [True, False, None])
def test_strict_is_kept(strict: bool | None) -> None:
    (tool,) = parse_request(tools=[{"type": "function", "name": "f", "strict": strict}]).tools
    assert isinstance(tool, tl.Function)
    assert tool.strict is strict


# --- choosing ------------------------------------------------------------------------------------

F = {"type": "function", "name": "f", "parameters": {}}


@pytest.mark.parametrize(
    ("choice", "tools", "items"),
    [
        ({"type": "function", "name": "f"}, [F], []),
        (
            {"type": "function", "name": "f"},
            [{"type": "namespace", "name": "n", "description": "", "tools": [F]}],
            [],
        ),
        (
            {"type": "function", "name": "f"},
            [],
            [{"type": "additional_tools", "role": "developer", "tools": [F]}],
        ),
        (
            {"type": "function", "name": "f"},
            [],
            [{"type": "tool_search_output", "call_id": "c", "tools": [F]}],
        ),
        ({"type": "custom", "name": "c"}, [{"type": "custom", "name": "c"}], []),
        (
            {"type": "mcp", "server_label": "d"},
            [{"type": "mcp", "server_label": "d", "server_url": "https://example.org"}],
            [],
        ),
        ({"type": "web_search_preview"}, [{"type": "web_search"}], []),
        ({"type": "computer_use"}, [{"type": "computer"}], []),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            [F],
            [],
        ),
    ],
)
def test_tool_choice_matches_its_tool(choice: Any, tools: list[Any], items: list[Any]) -> None:
    items = [*items, {"role": "user", "content": "hi"}]
    request = parse_request(tool_choice=choice, tools=tools, input=items)
    assert isinstance(request.tool_choice, tl.ToolChoiceObject)


# --- context -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"prompt": {"id": "pmpt_1"}},
    ],
    ids=json.dumps,
)
def test_input_is_optional_with_other_context(context: Any) -> None:
    assert parse_create_response(json.dumps(context).encode()).input is None


def test_token_count_needs_no_field() -> None:
    assert parse_input_tokens_request(b"{}") == InputTokensRequest()


def test_token_count_parses_fields_like_a_request() -> None:
    fields = {
        "input": "hi",
        "tools": [F],
        "tool_choice": "required",
        "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low"},
        "personality": "friendly",
        "temperature": 9,
    }
    counted = parse_input_tokens_request(json.dumps(fields).encode())
    del fields["personality"], fields["temperature"]
    assert counted.personality == "friendly"
    assert counted.as_create() == parse_create_response(json.dumps(fields).encode())


def test_code_interpreter_without_a_container_gets_one() -> None:
    (tool,) = parse_request(tools=[{"type": "code_interpreter"}]).tools
    assert tool == tl.CodeInterpreter(container={"type": "auto"})
