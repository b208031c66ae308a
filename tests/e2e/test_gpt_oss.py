"""A small gpt-oss in the embedded engine, through the official client, with greedy sampling."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.harness import ServerSetup
from tests.tiny_models.unpacked import tiny_gpt_oss

pytestmark = pytest.mark.e2e

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK: Any = {"model": "gpt-oss", "temperature": 0, "max_output_tokens": 120}
HELLO = "Hello! How can I help you today?"


@pytest.fixture(scope="module")
def server_setup() -> ServerSetup:
    model = f'[models.gpt-oss]\nsource = "{tiny_gpt_oss()}"\nthreads = 1\ncontext_size = 2048\n'
    return ServerSetup(model=model)


@pytest.mark.requirement("VN-4")
def test_reasoning_and_answer(client: OpenAI) -> None:
    answer = client.responses.create(**ASK, input="hi", instructions="Be brief.")
    thought, message = answer.output
    assert thought.type == "reasoning" and thought.content
    assert thought.content[0].text == "The user greets me. I greet back."
    assert message.type == "message" and answer.output_text == HELLO
    assert answer.status == "completed"
    usage = answer.usage
    assert usage is not None
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens


@pytest.mark.requirement("VN-82", "VN-83")
def test_stream_equals_what_the_client_accumulates(client: OpenAI) -> None:
    with client.responses.stream(**ASK, input="What is the capital of France?") as stream:
        events = list(stream)
        final = stream.get_final_response()

    def written(kind: str) -> str:
        return "".join(getattr(event, "delta", "") for event in events if event.type == kind)

    thought = final.output[0]
    assert thought.type == "reasoning" and thought.content
    assert written("response.reasoning_text.delta") == thought.content[0].text != ""
    assert written("response.output_text.delta") == final.output_text
    assert final.output_text == "The capital of France is Paris."
    assert events[-1].type == "response.completed"


@pytest.mark.parametrize("stream", [False, True])
def test_call_and_result_extend_the_stored_tokens(client: OpenAI, stream: bool) -> None:
    body = {**ASK, "tools": [WEATHER]}
    question = "What is the weather in Oslo?"
    if stream:
        with client.responses.stream(**body, input=question) as events:
            response: Any = events.get_final_response()
    else:
        response = client.responses.create(**body, input=question)
    thought, call = response.output
    assert thought.type == "reasoning"
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Oslo"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    expected = client.responses.create(**body, input=[result], previous_response_id=response.id)
    assert expected.status == "completed" and expected.output_text
    # What was sampled is the beginning of the next prompt, token for token: it is in the cache.
    token_count = response.usage.input_tokens + response.usage.output_tokens
    assert expected.usage is not None
    assert expected.usage.input_tokens_details.cached_tokens >= token_count - 1
    assert expected.usage.input_tokens > token_count


def test_tool_loop_with_state_kept_by_the_client(client: OpenAI) -> None:
    for output in ("sunny", "rainy"):
        answer = client.responses.create(
            **ASK,
            tools=[WEATHER],
            input=[
                {"role": "user", "content": "What is the weather in Oslo?"},
                {
                    "type": "function_call",
                    "call_id": "c1",
                    "name": "get_weather",
                    "arguments": '{"city":"Oslo"}',
                },
                {"type": "function_call_output", "call_id": "c1", "output": output},
            ],
        )
        assert answer.output_text == f"The weather in Oslo is {output}."


@pytest.mark.requirement("D-57")
def test_call_matches_its_strict_schema(client: OpenAI) -> None:
    other = {**WEATHER, "name": "other"}
    body = {**ASK, "input": "hi", "tools": [WEATHER, other]}
    for choice, name in (
        ("required", "get_weather"),
        ({"type": "function", "name": "other"}, "other"),
    ):
        response: Any = client.responses.create(**body, tool_choice=choice)
        call = response.output[-1]
        assert call.type == "function_call" and call.name == name
        assert set(json.loads(call.arguments)) == {"city"}
    free = client.responses.create(**{**body, "tools": [{**WEATHER, "strict": True}]})
    assert free.output_text == HELLO
    without = client.responses.create(**body, tool_choice="none")
    assert without.output_text == HELLO


@pytest.mark.requirement("D-59")
def test_json_answer_follows_the_reasoning(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}, "n": {"enum": [1, 2]}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
    answer = client.responses.create(
        **ASK, input="What is the capital of France?", text={"format": form}
    )
    assert answer.output[0].type == "reasoning"
    assert answer.status == "completed"
    assert set(json.loads(answer.output_text)) == {"city", "n"}


def test_unsupported_option_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(
            **ASK, input="hi", extra_body={"chat_template_kwargs": {"enable_thinking": False}}
        )
    assert caught.value.param == "chat_template_kwargs.enable_thinking"


def test_truncated_answer_is_incomplete(client: OpenAI) -> None:
    answer = client.responses.create(**{**ASK, "max_output_tokens": 8}, input="hi")
    (thought,) = answer.output
    assert thought.type == "reasoning" and thought.status == "incomplete"
    assert answer.status == "incomplete"
