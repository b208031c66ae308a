"""The official Python client."""

import asyncio

import openai
from checks import MODEL, SCHEMA, run
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client = OpenAI(max_retries=0)
WEATHER = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}


class City(BaseModel):
    name: str
    country: str


def a_plain_answer():
    answer = client.responses.create(model=MODEL, input="hi")
    assert answer.output_text == "Hello there!" and answer.status == "completed"
    assert client.responses.retrieve(answer.id) == answer
    assert client.responses.delete(answer.id) is None
    try:
        client.responses.retrieve(answer.id)
    except openai.NotFoundError as error:
        assert error.param == "response_id" and error.request_id
    else:
        raise AssertionError("it is still there")


def a_stream():
    with client.responses.stream(model=MODEL, input="Think first") as stream:
        events = list(stream)
        final = stream.get_final_response()
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == final.output_text == "Forty-two."
    assert final.output[0].type == "reasoning"
    assert events[0].type == "response.created" and events[-1].type == "response.completed"


def a_parsed_answer():
    answer = client.responses.parse(model=MODEL, input="Name a city as JSON", text_format=City)
    assert answer.output_parsed == City(name="Rome", country="Italy")
    with client.responses.stream(
        model=MODEL, input="Name a city as JSON", text_format=City
    ) as stream:
        assert stream.get_final_response().output_parsed == City(name="Rome", country="Italy")


def a_tool_loop():
    for cities in ("Rome", "two cities"):
        items = [{"role": "user", "content": f"What is the weather in {cities}?"}]
        response = client.responses.create(model=MODEL, input=items, tools=[WEATHER])
        calls = [item for item in response.output if item.type == "function_call"]
        assert len(calls) == (1 if cities == "Rome" else 2)
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            for call in calls
        ]
        chained = client.responses.create(
            model=MODEL, input=outputs, previous_response_id=response.id, tools=[WEATHER]
        )
        replayed = client.responses.create(
            model=MODEL, input=[*items, *response.output, *outputs], tools=[WEATHER], store=False
        )
        assert chained.output_text == replayed.output_text != ""


def a_background_answer():
    queued = client.responses.create(model=MODEL, input="hi", background=True)
    for _ in range(1000):
        answer = client.responses.retrieve(queued.id)
        if answer.status not in ("queued", "in_progress"):
            break
    assert answer.output_text == "Hello there!"
    live = list(client.responses.retrieve(queued.id, stream=True))
    rest = list(client.responses.retrieve(queued.id, stream=True, starting_after=2))
    assert rest == live[3:]
    with client.responses.stream(model=MODEL, input="hi", background=True) as stream:
        first = next(iter(stream))
        id, number = first.response.id, first.sequence_number
    with client.responses.stream(response_id=id, starting_after=number) as stream:
        assert stream.get_final_response().output_text == "Hello there!"


def conversations():
    talk = client.conversations.create(items=[{"role": "user", "content": "I am Ada."}])
    client.responses.create(model=MODEL, input="hi", conversation=talk.id)
    kinds = [item.role for item in client.conversations.items.list(talk.id, order="asc")]
    assert kinds == ["user", "user", "assistant"]
    assert client.conversations.delete(talk.id).deleted


def counting_and_compacting():
    assert client.responses.input_tokens.count(model=MODEL, input="hi").input_tokens > 0
    window = client.responses.compact(model=MODEL, input="hi")
    assert window.output[-1].type == "compaction"
    more = [item.model_dump(exclude_unset=True) for item in window.output]
    again = [*more, {"role": "user", "content": "Who?"}]
    assert client.responses.create(model=MODEL, input=again).output_text


async def a_connection():
    async with AsyncOpenAI() as asking, asking.responses.connect() as connection:
        previous = {}
        for _ in range(2):
            await connection.response.create(model=MODEL, input="hi", store=False, **previous)
            async for event in connection:
                assert event.type not in ("error", "response.failed"), event
                if event.type == "response.completed":
                    break
            assert event.response.output_text == "Hello there!"
            previous = {"previous_response_id": event.response.id}


def chat_completions():
    hi = [{"role": "user", "content": "hi"}]
    answer = client.chat.completions.create(model=MODEL, messages=hi)
    assert answer.choices[0].message.content == "Hello there!"
    with client.chat.completions.stream(
        model=MODEL, messages=hi, stream_options={"include_usage": True}
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there!" and final.usage.total_tokens
    turns = [{"role": "user", "content": "What is the weather in Rome?"}]
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    response = client.chat.completions.create(model=MODEL, messages=turns, tools=[tool])
    message = response.choices[0].message
    answered = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
    done = client.chat.completions.create(
        model=MODEL, messages=[*turns, message, answered], tools=[tool]
    )
    assert done.choices[0].message.content == "It is sunny in Rome."
    city = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a city as JSON"}],
        response_format=City,
    )
    assert city.choices[0].message.parsed.name == "Rome"


def models():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve("gpt-5.5").id == "gpt-5.5"


def failures():
    for ask, kind, code in (
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ({"input": "x" * 1_100_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"input": "Fail at once"}, openai.InternalServerError, "server_error"),
    ):
        try:
            client.responses.create(**{"model": MODEL, "input": "hi", **ask})
        except kind as error:
            assert error.code == code, error
        else:
            raise AssertionError(ask)
    try:
        list(client.responses.create(model=MODEL, input="Fail at once", stream=True))
    except openai.APIError as error:
        assert "The engine is gone." in str(error)
    else:
        raise AssertionError("the stream did not fail")


async def many_at_once():
    async with AsyncOpenAI() as asking:
        requests = [asking.responses.create(model=MODEL, input="hi") for _ in range(16)]
        answers = await asyncio.gather(*requests)
    assert {answer.output_text for answer in answers} == {"Hello there!"}


run(
    a_plain_answer,
    a_stream,
    a_parsed_answer,
    a_tool_loop,
    a_background_answer,
    conversations,
    counting_and_compacting,
    a_connection,
    chat_completions,
    models,
    failures,
    many_at_once,
)
