"""The official client against the real server and the real model."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

from tests.e2e.server import Server

pytestmark = pytest.mark.e2e

MODEL = "smollm2"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "unit": {"enum": ["C", "F"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


def test_plain_answer_of_the_real_model(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=20)
    assert answer.output_text
    assert answer.usage is not None and answer.usage.output_tokens <= 20
    assert answer.status in ("completed", "incomplete")
    assert client.responses.retrieve(answer.id) == answer


def test_stream_equals_what_the_client_accumulates(client: OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Answer with one word: what colour is the sky?", temperature=0
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text != ""


async def test_concurrent_streams_do_not_mix(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.url, api_key="none") as client:

        async def one(number: int) -> str:
            stream = await client.responses.create(
                model=MODEL,
                input=f"Count from {number}.",
                max_output_tokens=16,
                stream=True,
                temperature=0,
            )
            kinds = [event.type async for event in stream]
            assert kinds[0] == "response.created"
            return kinds[-1]

        async with asyncio.timeout(60):
            ends = await asyncio.gather(*(one(number) for number in range(6)))
    assert set(ends) <= {"response.completed", "response.incomplete"}


#: A keyword that no grammar can enforce.
IMPOSSIBLE = {"type": "json_schema", "name": "n", "schema": {"not": {}}}


class City(BaseModel):
    name: str = Field(max_length=30)
    country: str = Field(max_length=30)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_structured_output_always_parses(client: OpenAI, seed: int) -> None:
    answer = client.responses.parse(
        model=MODEL,
        input="Name a city.",
        text_format=City,
        temperature=1,
        extra_body={"seed": seed},
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, City)


@pytest.mark.parametrize("seed", [1, 2])
def test_json_object_output_parses(client: OpenAI, seed: int) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="Describe a cat as JSON.",
        text={"format": {"type": "json_object"}},
        max_output_tokens=200,
        extra_body={"seed": seed},
    )
    if answer.status == "completed":
        assert isinstance(json.loads(answer.output_text), dict)


def test_tool_is_called_answered_and_the_run_continues(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL,
        input="What is the weather in Rome?",
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    (call,) = response.output
    assert call.type == "function_call" and call.name == "get_weather"
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")
    answer = client.responses.create(
        model=MODEL,
        previous_response_id=response.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[WEATHER],
        tool_choice="none",
        max_output_tokens=30,
    )
    assert answer.output_text
    with pytest.raises(BadRequestError, match="No tool output found"):
        client.responses.create(model=MODEL, previous_response_id=response.id, input="And?")


@pytest.mark.parametrize(
    ("syntax", "definition", "right"),
    [
        ("regex", r"[a-z]{3,8}\n[0-9]{2}", r"[a-z]{3,8}\n[0-9]{2}"),
        ("lark", 'start: "on" | "off" LF WORD\nLF: "\\n"\nWORD: /[a-z]{1,9}/', r"on|off\n[a-z]+"),
    ],
)
def test_custom_tool_input_matches_its_grammar(
    client: OpenAI, syntax: str, definition: str, right: str
) -> None:
    import re

    tool: Any = {
        "type": "custom",
        "name": "switch",
        "format": {"type": "grammar", "syntax": syntax, "definition": definition},
    }
    answer = client.responses.create(
        model=MODEL,
        input="Use the switch.",
        tools=[tool],
        tool_choice={"type": "custom", "name": "switch"},
        parallel_tool_calls=False,
        temperature=0,
    )
    (call,) = answer.output
    assert call.type == "custom_tool_call" and answer.status == "completed"
    assert re.fullmatch(right, call.input)


def test_chain_branches_and_reuses_its_prefix(client: OpenAI) -> None:
    first = client.responses.create(
        model=MODEL, input="My name is Ada. " * 20, max_output_tokens=8, temperature=0
    )
    turns = [
        client.responses.create(
            model=MODEL,
            input=text,
            previous_response_id=first.id,
            max_output_tokens=8,
            temperature=0,
        )
        for text in ("What is my name?", "Say it backwards.")
    ]
    assert first.usage is not None
    for turn in turns:
        assert turn.previous_response_id == first.id
        assert turn.usage is not None and turn.usage.input_tokens > first.usage.input_tokens
    # The first to go on finds all of it computed; a second branch may get a place of its own.
    assert turns[0].usage is not None
    assert turns[0].usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 8


def test_input_items_are_listed_and_deleted_responses_return_404(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="One.", max_output_tokens=4)
    second = client.responses.create(
        model=MODEL, input="Two.", previous_response_id=first.id, max_output_tokens=4
    )
    listed = list(client.responses.input_items.list(second.id, limit=1))
    assert [item.type for item in listed] == ["message", "message", "message"]
    client.responses.delete(first.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=MODEL, input="?", previous_response_id=first.id)
    assert refused.value.code == "previous_response_not_found"
    assert client.responses.retrieve(second.id).id == second.id


def test_conversation_is_continued(client: OpenAI) -> None:
    talk = client.conversations.create(items=[{"role": "user", "content": "I am Ada."}])
    client.responses.create(
        model=MODEL, input="Who am I?", conversation=talk.id, max_output_tokens=8
    )
    kinds = [item.type for item in client.conversations.items.list(talk.id, order="asc")]
    assert kinds == ["message", "message", "message"]
    assert client.conversations.delete(talk.id).deleted


def test_input_token_count_equals_usage(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=MODEL, input="How many tokens?")
    answer = client.responses.create(model=MODEL, input="How many tokens?", max_output_tokens=1)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


def test_logprobs_appear_only_when_requested(client: OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="Say hello.",
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        max_output_tokens=4,
        temperature=0,
    )
    (message,) = answer.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs and "".join(each.token for each in logprobs) == answer.output_text
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in logprobs)


FORM = {"type": "json_schema", "name": "n", "strict": True}


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"model": "nobody"}, 404, "model_not_found"),
        ({"temperature": 9}, 400, "decimal_above_max_value"),
        ({"input": "word " * 5000}, 400, "context_length_exceeded"),
        ({"moderation": {"model": "m"}}, 400, "unsupported_parameter"),
        ({"previous_response_id": "resp_none"}, 400, "previous_response_not_found"),
        (
            {"text": {"format": {**FORM, "schema": {"not": {}}}}},
            400,
            "invalid_json_schema",
        ),
    ],
)
def test_unsupported_value_is_refused_by_field(
    client: OpenAI, fields: dict[str, Any], status: int, code: str
) -> None:
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(**{"model": MODEL, "input": "hi", **fields})
    assert (refused.value.status_code, refused.value.code) == (status, code)


def test_long_input_is_truncated_on_request(client: OpenAI) -> None:
    items: Any = [{"role": "user", "content": "word " * count} for count in (2040, 20)]
    answer = client.responses.create(
        model=MODEL, input=items, truncation="auto", max_output_tokens=4
    )
    assert answer.usage is not None and answer.usage.input_tokens < 2048


def test_disconnected_reader_frees_the_engine(server: Server) -> None:
    body = {"model": MODEL, "input": "Tell a very long story.", "stream": True}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=60) as answer:
        for line in answer.iter_lines():
            if "output_text.delta" in line:
                break
    deadline = time.monotonic() + 20
    while server.running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert server.running() == 0


CODEX = json.loads((Path(__file__).parent / "codex.json").read_text())


def test_request_of_codex_is_answered(server: Server) -> None:
    answer = httpx.post(f"{server.url}/responses", json=CODEX, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-antiphon-ignored-tools"] == "web_search, image_generation"
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[0] == "response.created"
    assert names[-1] in ("response.completed", "response.incomplete")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_warm_up_of_codex_is_answered(server: Server) -> None:
    body = {"model": MODEL, "input": "", "max_output_tokens": 1}
    assert httpx.post(f"{server.url}/responses", json=body, timeout=60).status_code == 200


def test_compacted_conversation_continues(client: OpenAI) -> None:
    talk: Any = [
        {"role": "user", "content": "My name is Ann and I live in Rome."},
        {"role": "assistant", "content": "Hello Ann! " + "Rome is old. " * 80},
        {"role": "user", "content": "Say hello to me."},
    ]
    settings: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 20}
    window = client.responses.compact(model=MODEL, input=talk)
    again = [item.model_dump(exclude_unset=True, warnings=False) for item in window.output]
    assert [item["type"] for item in again] == ["message", "message", "compaction"]
    more: Any = [*again, {"role": "user", "content": "Where do I live?"}]
    assert client.responses.create(input=more, **settings).output_text
    before = client.responses.input_tokens.count(model=MODEL, input=talk).input_tokens
    after = client.responses.input_tokens.count(model=MODEL, input=more).input_tokens
    assert after < before + 100  # the summary is no longer than what it replaces


# --- over a WebSocket, and in the background -----------------------------------------------------


@pytest.mark.requirement("API-WEBSOCKET")
async def test_websocket_chains_unstored_responses(server: Server) -> None:
    previous: str | None = None
    async with (
        asyncio.timeout(60),
        AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as asking,
        asking.responses.connect() as connection,
    ):
        for text in ("Say hi.", "Again."):
            given: Any = {"previous_response_id": previous} if previous else {}
            await connection.response.create(
                model="smollm2", input=text, store=False, max_output_tokens=8, **given
            )
            async for event in connection:
                assert event.type != "error", event
                if event.type in ("response.completed", "response.incomplete"):
                    break
            assert event.response.previous_response_id == previous  # type: ignore[union-attr]
            previous = event.response.id  # type: ignore[union-attr]


@pytest.mark.requirement("API-BACKGROUND")
def test_background_response_is_replayed(client: OpenAI) -> None:
    queued = client.responses.create(
        model="smollm2", input="Count to ten.", background=True, max_output_tokens=24
    )
    assert queued.status == "queued"
    live = list(client.responses.retrieve(queued.id, stream=True))
    again = list(client.responses.retrieve(queued.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in live] == list(range(len(live)))
    assert again == live[4:]
    assert client.responses.retrieve(queued.id).output_text == live[-1].response.output_text  # type: ignore[union-attr]


# --- the older APIs ------------------------------------------------------------------------------


@pytest.mark.requirement("CC-FORMAT")
def test_chat_completion_of_the_real_model(client: OpenAI) -> None:
    hi: Any = [{"role": "user", "content": "Name a city."}]
    city = client.chat.completions.parse(
        model=MODEL, messages=hi, response_format=City, temperature=1, seed=1, max_tokens=100
    )
    assert isinstance(city.choices[0].message.parsed, City)
    several = client.chat.completions.create(
        model=MODEL, messages=hi, max_tokens=8, n=2, temperature=1, seed=1
    )
    assert len({choice.message.content for choice in several.choices}) == 2
    tool: Any = {
        "type": "function",
        "function": {name: WEATHER[name] for name in ("name", "description", "parameters")},
    }
    response = client.chat.completions.create(
        model=MODEL, messages=hi, tools=[tool], tool_choice="required", temperature=0, max_tokens=60
    )
    (call, *_) = response.choices[0].message.tool_calls or ()
    assert call.type == "function" and set(json.loads(call.function.arguments)) == {"city", "unit"}


@pytest.mark.requirement("CO-ANSWER")
def test_completion_of_the_real_model(client: OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(prompt="One, two, three, four,", logprobs=2, **body)
    (choice,) = whole.choices
    assert "five" in choice.text and choice.finish_reason == "length"
    assert choice.logprobs is not None and "".join(choice.logprobs.tokens or ()) == choice.text
    pieces = client.completions.create(prompt="One, two, three, four,", stream=True, **body)
    assert "".join(piece.choices[0].text for piece in pieces) == choice.text
