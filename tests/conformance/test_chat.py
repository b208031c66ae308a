"""The Chat Completions API, through the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities
from antiphon.errors import BackendError
from antiphon.stream.deltas import Close, Finish, Open, Text
from antiphon.testing.engine import ScriptedEngine
from antiphon.wire.items import CustomToolCall, FunctionCall, Message, Reasoning
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import Server, engine, local

Json = dict[str, Any]
HI: Json = {"messages": [{"role": "user", "content": "hi"}]}
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
USAGE = Usage(
    input_tokens=5,
    input_tokens_details=InputTokensDetails(cached_tokens=2),
    output_tokens=4,
    output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    total_tokens=9,
)


async def create(server: Server, **body: Any) -> Json:
    """Return an answer, after strict validation with the official client's type."""
    reply = await server.client.post("/v1/chat/completions", json={"model": "tiny", **HI, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/json"
    ChatCompletion.model_validate_json(reply.content, strict=True)
    answer: Json = reply.json()
    return answer


async def stream_chunks(server: Server, **body: Any) -> list[Json]:
    """Return the chunks of a stream, each validated strictly with the official client's type."""
    body = {"model": "tiny", "stream": True, **HI, **body}
    reply = await server.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    *frames, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    found = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    for frame in frames:
        # of calls in a stream the client's types list those of functions alone
        if not frame.startswith('data: {"error"') and '"custom":' not in frame:
            ChatCompletionChunk.model_validate_json(frame.removeprefix("data: "), strict=True)
    return found


async def rejection(server: Server, **body: Any) -> Json:
    body = {"model": "tiny", **HI, **body}
    reply = await server.client.post("/v1/chat/completions", json=body)
    error: Json = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return {"status": reply.status_code, **error}


async def accumulate(client: AsyncOpenAI, **body: Any) -> Any:
    """Return the result of the official client's accumulator for the stream."""
    async with client.chat.completions.stream(model="tiny", **HI, **body) as stream:
        async for _ in stream:
            pass
        return await stream.get_final_completion()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.requirement("CC-ANSWER")
async def test_chat_completion_has_one_choice_and_usage(serve: Serve) -> None:
    answer = await create(serve("Hello there!"))
    assert answer["object"] == "chat.completion" and answer["model"] == "tiny"
    assert answer["id"].startswith("chatcmpl-") and answer["created"]
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there!", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert answer["usage"]["total_tokens"] == 3


@pytest.mark.requirement("CC-STREAM")
async def test_streamed_text_completion(serve: Serve) -> None:
    first, *middle, last = await stream_chunks(serve("Hello there!"))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["delta"] for one in middle] == [
        {"content": "Hello"},
        {"content": " there!"},
    ]
    assert last["choices"] == [{"delta": {}, "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert {one["id"] for one in (first, *middle, last)} == {first["id"]}
    assert "usage" not in last


ANSWER_DELTAS: tuple[Any, ...] = (
    Open(Reasoning()),
    Text("Hmm."),
    Close(),
    Open(Message(role="assistant", content=())),
    Text("Let me look."),
    Close(),
    Open(FunctionCall(call_id="call_1", name="get_weather", arguments="")),
    Text('{"city":'),
    Text(' "Rome"}'),
    Close(),
    Open(CustomToolCall(call_id="call_2", name="note", input="")),
    Text("buy milk"),
    Close(),
    Finish("stop", USAGE),
)


@pytest.mark.requirement("CC-ONE-MESSAGE")
async def test_reasoning_text_and_calls_form_one_message(serve: Serve, client_of: Clients) -> None:
    server = serve([ANSWER_DELTAS])
    answer = await create(server, tools=[WEATHER])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me look.",
        "refusal": None,
        "reasoning_content": "Hmm.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            },
            {"id": "call_2", "type": "custom", "custom": {"name": "note", "input": "buy milk"}},
        ],
    }
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


@pytest.mark.requirement("CC-CALL-DELTAS")
@pytest.mark.requirement("CC-USAGE")
async def test_streamed_tool_calls(serve: Serve) -> None:
    chunks = await stream_chunks(serve([ANSWER_DELTAS]), stream_options={"include_usage": True})
    *result, usage = chunks
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 9
    assert all(one["usage"] is None for one in result)
    deltas = [one["choices"][0]["delta"] for one in result]
    assert [delta for delta in deltas if "tool_calls" not in delta] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hmm."},
        {"content": "Let me look."},
        {},
    ]
    assert [delta["tool_calls"] for delta in deltas if "tool_calls" in delta] == [
        [
            {
                "index": 0,
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": ""},
            }
        ],
        [{"index": 0, "function": {"arguments": '{"city":'}}],
        [{"index": 0, "function": {"arguments": ' "Rome"}'}}],
        [{"index": 1, "id": "call_2", "type": "custom", "custom": {"name": "note", "input": ""}}],
        [{"index": 1, "custom": {"input": "buy milk"}}],
    ]


async def test_official_client_accumulates_the_same_completion(
    serve: Serve, client_of: Clients
) -> None:
    server = serve([ANSWER_DELTAS[:10] + ANSWER_DELTAS[-1:]])
    whole = (await create(server, tools=[WEATHER]))["choices"][0]
    final = (await accumulate(client_of(server.app), tools=[WEATHER])).choices[0]
    assert final.finish_reason == whole["finish_reason"] == "tool_calls"
    assert final.message.content == whole["message"]["content"]
    (call,) = final.message.tool_calls
    assert call.function.arguments == whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert call.id == "call_1"


@pytest.mark.requirement("CC-FUNCTIONS")
async def test_legacy_function_calls(serve: Serve) -> None:
    server = serve([ANSWER_DELTAS[:10]])
    body: Json = {"functions": [WEATHER["function"]], "function_call": "auto"}
    (choice,) = (await create(server, **body))["choices"]
    output = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == output and "tool_calls" not in choice["message"]
    deltas = [one["choices"][0]["delta"] for one in await stream_chunks(server, **body)]
    pieces = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert pieces[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(piece["arguments"] for piece in pieces) == output["arguments"]
    # there is room for one, whatever else is asked for
    for request in (True, False):
        server = serve(local(engine([f"{CALL}\n{CALL}"])))
        deltas = [
            one["choices"][0]["delta"]
            for one in await stream_chunks(server, **body, parallel_tool_calls=request)
        ]
        named = [one for one in deltas if "name" in one.get("function_call", {})]
        assert len(named) == 1


@pytest.mark.parametrize("raw", [True, False])
async def test_stream_and_plain_answer_have_the_same_reasoning(serve: Serve, raw: bool) -> None:
    """Several reasoning items are separate lines; a summary is used only if there is no content."""
    chunks = [
        delta
        for thought in ("One", "Two")
        for delta in (
            Open(Reasoning()),
            *((Text(f"{thought}."),) if raw else ()),
            Text(f"{thought} in", channel="summary"),
            Text(" short.", channel="summary"),
            Close(),
        )
    ]
    expected = "One.\nTwo." if raw else "One in short.\nTwo in short."
    server = serve([(*chunks, Open(Message(role="assistant", content=())), Text("Hi."), Close())])
    (choice,) = (await create(server))["choices"]
    assert choice["message"]["reasoning_content"] == expected
    deltas = [one["choices"][0]["delta"] for one in await stream_chunks(server)]
    assert "".join(one.get("reasoning_content", "") for one in deltas) == expected


@pytest.mark.requirement("CC-FINISH")
@pytest.mark.parametrize(
    ("reason", "finish"), [("length", "length"), ("content_filter", "content_filter")]
)
async def test_finish_reason_says_why_the_output_ended(
    serve: Serve, reason: Any, finish: str
) -> None:
    server = serve(
        [(Open(Message(role="assistant", content=())), Text("Hel"), Finish(reason, USAGE))]
    )
    assert (await create(server))["choices"][0]["finish_reason"] == finish
    assert (await stream_chunks(server))[-1]["choices"][0]["finish_reason"] == finish


async def test_refusal_of_the_model_is_returned_as_refusal(serve: Serve) -> None:
    output = (
        Open(Message(role="assistant", content=())),
        Text("I will not.", channel="refusal"),
        Close(),
    )
    server = serve([output])
    (choice,) = (await create(server))["choices"]
    assert choice["message"]["refusal"] == "I will not." and choice["message"]["content"] is None
    deltas = [one["choices"][0]["delta"] for one in await stream_chunks(server)]
    assert {"refusal": "I will not."} in deltas


@pytest.mark.requirement("CC-LOGPROBS")
async def test_log_probabilities_are_the_same_with_and_without_a_stream(serve: Serve) -> None:
    server = serve(engine(["Hi"]))
    (choice,) = (await create(server, logprobs=True, top_logprobs=2))["choices"]
    content = choice["logprobs"]["content"]
    assert [one["token"] for one in content] == ["H", "i"]
    assert len(content[0]["top_logprobs"]) == 2 and content[0]["bytes"] == [72]
    streamed = await stream_chunks(server, logprobs=True, top_logprobs=2)
    found = [one["choices"][0]["logprobs"] for one in streamed]
    assert [one for each in found if each for one in each["content"]] == content


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.requirement("CC-MESSAGES")
async def test_conversation_with_tool_calls_reaches_the_model(serve: Serve) -> None:
    scripted_engine = engine(["Sunny."])
    call = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    body = {"role": "assistant", "content": None, "tool_calls": [call]}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
        {**body, "reasoning_content": "Look it up."},
        {"role": "tool", "tool_call_id": "call_0", "content": "sun"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "And now?", "name": "ada"},
        body,  # the same id again
        {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "rain"}]},
    ]
    await create(serve(scripted_engine), messages=turns, tools=[WEATHER])
    prompt = scripted_engine.text(scripted_engine.requests[0][0])
    order = ["Be brief.", "Rome?", "Look it up.", "sun", "Sunny.", "And now?", "rain"]
    places = [prompt.index(word) for word in order]
    assert places == sorted(places)
    assert prompt.count("<tool_call>\n") == 2


async def test_legacy_function_messages_reach_the_model(serve: Serve) -> None:
    scripted_engine = engine(["Sunny."])
    turns = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": "sun and wind"},
    ]
    await create(serve(scripted_engine), messages=turns, functions=[WEATHER["function"]])
    assert "sun and wind" in scripted_engine.text(scripted_engine.requests[0][0])


async def test_options_reach_the_engine(serve: Serve) -> None:
    scripted_engine = engine(["Hello END of it"])
    answer = await create(
        serve(scripted_engine),
        max_completion_tokens=50,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=7,
        stop="END",
        logit_bias={"5": -100},
        top_k=3,
        min_p=0.1,
        repetition_penalty=1.2,
        user="ada",
        metadata={"a": "b"},
        service_tier="auto",
        n=1,
        modalities=["text"],
        store=False,
    )
    (_, sampling) = scripted_engine.requests[0]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0.5, 0.9)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, 0.2)
    assert (sampling.seed, sampling.stop, sampling.logit_bias) == (7, ("END",), {5: -100})
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (3, 0.1, 1.2)
    assert answer["choices"][0]["message"]["content"] == "Hello "


@pytest.mark.requirement("CC-FORMAT")
async def test_official_client_parses_structured_output(serve: Serve, client_of: Clients) -> None:
    class City(BaseModel):
        name: str

    scripted_engine = engine(['{"name": "Rome"}'])
    client = client_of(serve(scripted_engine).app)
    answer = await client.chat.completions.parse(model="tiny", **HI, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Rome")
    (_, sampling) = scripted_engine.requests[0]
    assert sampling.constraint is not None and sampling.constraint.needed


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "get_weather"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "get_weather"}}],
            },
        },
    ],
)
async def test_tool_choice_forces_a_call(serve: Serve, choice: Any) -> None:
    scripted_engine = engine([CALL])
    answer = await create(serve(scripted_engine), tools=[WEATHER], tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    constraint = scripted_engine.requests[0][1].constraint
    assert constraint is not None and constraint.needed


async def test_effort_and_template_arguments_reach_the_template(serve: Serve) -> None:
    scripted_engine = engine(["x"])
    scripted_engine.card = type(scripted_engine.card)(
        **{
            **{
                name: getattr(scripted_engine.card, name)
                for name in scripted_engine.card.__struct_fields__
            },
            "chat_template": "{{ messages[0].content }} {{ reasoning_effort }} {{ colour }}",
        }
    )
    body = {"reasoning_effort": "high", "chat_template_kwargs": {"colour": "red"}}
    await create(serve(local(scripted_engine)), **body)
    assert "hi high red" in scripted_engine.text(scripted_engine.requests[0][0])


async def test_assistant_message_can_be_continued(serve: Serve) -> None:
    scripted_engine = engine([" upon a time"])
    turns = [*HI["messages"], {"role": "assistant", "content": "Once"}]
    body = {"messages": turns, "continue_final_message": True, "add_generation_prompt": False}
    answer = await create(serve(scripted_engine), **body)
    assert scripted_engine.text(scripted_engine.requests[0][0]).endswith("assistant\nOnce")
    assert answer["choices"][0]["message"]["content"] == " upon a time"


@pytest.mark.requirement("CC-STATELESS")
async def test_chat_completions_are_not_stored(serve: Serve) -> None:
    server = serve("Hello")
    answer = await create(server)
    id = answer["id"].replace("chatcmpl-", "resp_")
    assert (await server.get(f"responses/{id}")).status_code == 404


# --- rejections ----------------------------------------------------------------------------------

USER: Json = {"role": "user", "content": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,x", "detail": "huge"}}


@pytest.mark.requirement("CC-ERRORS")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": [5]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "boss"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": ["user"]}]}, "messages[0].role", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [USER, {"role": "assistant"}]},
            "messages[1].content",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0].detail",
            "invalid_value",
        ),
        (
            {"messages": [USER, {"role": "tool", "content": "x"}]},
            "messages[1].tool_call_id",
            "missing_required_parameter",
        ),
        (
            {"messages": [USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
            "messages",
            None,
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 5}}]},
                ]
            },
            "messages[1].tool_calls[0].function.name",
            "invalid_type",
        ),
        (
            {"messages": [USER, {"role": "function", "name": "f", "content": ""}]},
            "messages[1]",
            "invalid_value",
        ),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 33}, "n", "integer_above_max_value"),
        ({"n": "2"}, "n", "invalid_type"),
        ({"store": "yes"}, "store", "invalid_type"),
        ({"store": True, "n": 2}, "n", "unsupported_value"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"guided_json": {}}, "guided_json", "unsupported_parameter"),
        ({"min_tokens": 5}, "min_tokens", "unsupported_parameter"),
        ({"stop_token_ids": [3]}, "stop_token_ids", "unsupported_parameter"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        ({"continue_final_message": 1}, "continue_final_message", "invalid_type"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "unsupported_value"),
        ({"input": "hi"}, "input", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens", "invalid_type"),
        (
            {"max_tokens": 5, "max_completion_tokens": 5},
            "max_tokens",
            "mutually_exclusive_parameters",
        ),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"logprobs": 2}, "logprobs", "invalid_type"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
            "missing_required_parameter",
        ),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
        ({"verbosity": "loud"}, "verbosity", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            {"functions": [{"name": "a b"}]},
            "functions[0].name",
            "invalid_value",
        ),
        ({"tools": [WEATHER], "functions": []}, "tools", "mutually_exclusive_parameters"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function",
            None,
        ),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "unsupported_parameter",
        ),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_type",
        ),
        ({"model": "nope"}, "model", "model_not_found"),
    ],
)
async def test_invalid_fields_are_rejected_with_chat_paths(
    serve: Serve, body: Json, param: str, code: str | None
) -> None:
    error = await rejection(serve(engine(["x"])), **body)
    assert error["status"] == (404 if code == "model_not_found" else 400)
    assert (error["param"], error["code"]) == (param, code)
    assert "input[" not in error["message"] and "text.format" not in error["message"]


async def test_too_long_prompt_is_rejected(serve: Serve) -> None:
    error = await rejection(
        serve(engine(["x"])), messages=[{"role": "user", "content": "x" * 9000}]
    )
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_unsupported_engine_option_is_rejected(serve: Serve) -> None:
    server = serve(local(ScriptedEngine(capabilities=Capabilities())))
    assert (await rejection(server, logprobs=True))["param"] == "logprobs"
    assert (await rejection(server, seed=1))["param"] == "seed"


async def test_failure_before_the_first_token(serve: Serve, client_of: Clients) -> None:
    server = serve([BackendError("The engine is gone.")])
    error = await rejection(server)
    assert (error["status"], error["message"]) == (
        502,
        "The engine is gone. You can retry your request.",
    )
    with pytest.raises(openai.APIError, match="The engine is gone"):
        await accumulate(client_of(server.app))


@pytest.mark.requirement("CC-FAILURE")
async def test_failure_ends_the_stream(serve: Serve) -> None:
    chunks = await stream_chunks(serve([BackendError("The engine is gone.")]))
    assert chunks[-1]["error"]["message"] == "The engine is gone. You can retry your request."
    assert set(chunks[-1]["error"]) == {"message", "type", "param", "code"}


async def test_idle_stream_sends_comments(serve: Serve) -> None:
    server = serve(ScriptedBackend(("Hello there!",), wait_s=0.05), keepalive_s=0.02)
    body = {"model": "tiny", "stream": True, **HI}
    reply = await server.client.post("/v1/chat/completions", json=body)
    assert ": keepalive\n\n" in reply.text and reply.text.startswith("data: ")


@pytest.mark.requirement("CC-CHOICES")
async def test_n_choices_are_answered_and_counted(serve: Serve) -> None:
    server = serve(["One.", "Two.", "Three."])
    answer = await create(server, n=3)
    outputs = [(one["index"], one["message"]["content"]) for one in answer["choices"]]
    assert outputs == [(0, "One."), (1, "Two."), (2, "Three.")]
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 1, "completion_tokens": 3}
    line = json.loads(server.log.getvalue().splitlines()[-1])
    assert (line["input_tokens"], line["output_tokens"]) == (3, 3)
    streamed = await stream_chunks(server, n=3, stream_options={"include_usage": True})
    assert {one["id"] for one in streamed} == {streamed[0]["id"]}
    texts = ["", "", ""]
    for chunk in streamed[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["One.", "Two.", "Three."]
    assert streamed[-1]["usage"]["completion_tokens"] == 3


async def test_each_choice_has_its_own_seed(serve: Serve) -> None:
    scripted_engine = engine(["x"])
    server = serve(scripted_engine)
    await create(server, n=3, seed=7)
    await create(server, n=2, seed=2**63 - 1)
    seeds = [sampling.seed for _, sampling in scripted_engine.requests]
    assert seeds == [7, 8, 9, 2**63 - 1, -(2**63)]


async def test_failed_choice_fails_the_completion(serve: Serve) -> None:
    server = serve(["One.", BackendError("The engine is gone.")])
    assert (await rejection(server, n=2))[
        "message"
    ] == "The engine is gone. You can retry your request."
    streamed = await stream_chunks(server, n=2, stream_options={"include_usage": True})
    assert [one["error"]["message"] for one in streamed if "error" in one]
    assert all(one.get("choices") != [] for one in streamed)


async def test_answer_names_the_parts_that_the_model_cannot_read(serve: Serve) -> None:
    scripted = engine(["ok"])
    dialect = ChatDialect(scripted.card, scripted.tokenizer, unreadable="describe")
    server = serve(LocalBackend(scripted, dialect))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "What is this?"}, image]
    seen = {"messages": [{"role": "user", "content": content}]}
    omitted = [{"type": "input_image", "param": "messages[0].content[1]"}]
    assert (await create(server, **seen))["omitted_parts"] == omitted
    *first, last = await stream_chunks(server, **seen)
    assert last["omitted_parts"] == omitted
    assert all("omitted_parts" not in chunk for chunk in first)
