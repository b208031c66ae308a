"""A whole tool loop of a real model: the tiny model reasons, calls, reads the result and answers.

Nothing is forced and no grammar helps: what is read here is what the model wrote.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.server import Server
from tests.harness import ServerSetup, official_client

pytestmark = pytest.mark.e2e

MODEL = Path(__file__).parents[1] / "tiny_models" / "tiny-tools" / "tiny-tools.gguf"


def _tool(name: str, description: str, **properties: str) -> Any:
    schema = {
        "type": "object",
        "properties": {each: {"type": kind} for each, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    tool = {"type": "function", "name": name, "description": description, "parameters": schema}
    return {**tool, "strict": False}


WEATHER = _tool("get_weather", "Get the weather in a city.", city="string")
ADD = _tool("add", "Add two numbers.", a="integer", b="integer")
ASK: Any = {"model": "tiny", "temperature": 0, "tools": [WEATHER, ADD]}


#: Engine → its package and the model in its form.
ENGINES = {
    "llama": ("xllamacpp", MODEL),
    "openvino": ("openvino_genai", MODEL),
    "transformers": ("transformers", MODEL.parent),
}


@pytest.fixture(
    scope="module",
    params=["llama", "openvino", pytest.param("transformers", marks=pytest.mark.engines)],
)
def server_setup(request: pytest.FixtureRequest) -> ServerSetup:
    package, source = ENGINES[request.param]
    pytest.importorskip(package)
    model = (
        f'[models.tiny]\nsource = "{source}"\nengine = "{request.param}"\nload = "demand"\n'
        "threads = 1\ncontext_size = 2048\n"
    )
    return ServerSetup(model=model)


def test_tool_loop_with_reasoning(client: OpenAI) -> None:
    response = client.responses.create(**ASK, input="What is the weather in Rome?")
    thought, call = response.output
    assert thought.type == "reasoning" and thought.content
    assert "weather in Rome" in thought.content[0].text
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments) == {"city": "Rome"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 °C"}
    answer = client.responses.create(**ASK, previous_response_id=response.id, input=[result])
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.output_text == "The weather in Rome is sunny, 21 °C."
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    again = client.responses.create(**ASK, previous_response_id=answer.id, input="Thanks!")
    assert again.output_text == "You are welcome!"


def test_client_that_sends_its_history(client: OpenAI) -> None:
    """Without stored state: the client sends every item back as it came."""
    items: Any = [{"role": "user", "content": "What is 17 plus 25?"}]
    response = client.responses.create(**ASK, input=items, store=False)
    (call,) = (item for item in response.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 17, "b": 25})
    items += [item.model_dump(exclude_none=True) for item in response.output]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "42"}]
    answer = client.responses.create(**ASK, input=items, store=False)
    assert answer.output_text == "17 plus 25 is 42."


def test_two_cities_are_asked_about_in_parallel_calls(client: OpenAI) -> None:
    response = client.responses.create(**ASK, input="What is the weather in Oslo and in Lima?")
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Oslo", "Lima"]


def test_parallel_calls_can_be_declined(client: OpenAI) -> None:
    response = client.responses.create(
        **ASK, input="What is the weather in Oslo and in Lima?", parallel_tool_calls=False
    )
    calls = [item for item in response.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Oslo"}]
    assert response.status == "completed"


def test_reasoning_and_call_are_streamed(client: OpenAI) -> None:
    with client.responses.stream(**ASK, input="What is the weather in Cairo?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    thinking = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    arguments = "".join(
        e.delta for e in events if e.type == "response.function_call_arguments.delta"
    )
    assert "weather in Cairo" in thinking
    assert json.loads(arguments) == {"city": "Cairo"}
    assert [item.type for item in final.output] == ["reasoning", "function_call"]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_concurrent_tool_loops(server: Server) -> None:
    async with official_client(server.url) as client:

        async def loop(city: str) -> str:
            response = await client.responses.create(**ASK, input=f"What is the weather in {city}?")
            (call,) = (item for item in response.output if item.type == "function_call")
            result: Any = {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": '{"weather": "windy"}',
            }
            answer = await client.responses.create(
                **ASK, previous_response_id=response.id, input=[result]
            )
            return answer.output_text

        cities = ("Tokyo", "Paris", "Berlin", "Madrid", "Vienna", "Dublin")
        async with asyncio.timeout(60):
            output = await asyncio.gather(*map(loop, cities))
    assert list(output) == [f"The weather in {city} is windy." for city in cities]


def test_answer_without_tools(client: OpenAI) -> None:
    response = client.responses.create(
        model="tiny", input="What is the weather in Rome?", temperature=0
    )
    assert response.output_text == "I cannot look up the weather."
    greeted = client.responses.create(**ASK, input="Hello!")
    assert greeted.output_text == "Hello! How can I help you today?"


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>", "<think>", "</think>"])
def test_structured_output_may_contain_the_model_tags(client: OpenAI, tag: str) -> None:
    """The text of a tag is allowed inside a string, whatever tokens it consists of."""
    schema = {
        "type": "object",
        "properties": {"tag": {"enum": [tag]}},
        "required": ["tag"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "name": "tag", "schema": schema, "strict": True}
    body: Any = {"model": "tiny", "temperature": 0, "input": "Hi!", "max_output_tokens": 60}
    text = client.responses.create(**body, text={"format": form}).output_text.strip()
    # where a grammar allows blanks, this model may go on with them until its tokens run out
    assert json.loads(text.removesuffix("}") + "}") == {"tag": tag}


@pytest.mark.requirement("API-TOOL-CHOICE")
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_limit_the_calls(client: OpenAI, mode: Any) -> None:
    """Other tools are excluded by a grammar, or not shown to the model."""
    only_add = [{"type": "function", "name": "add"}]
    some: Any = {"type": "allowed_tools", "mode": mode, "tools": only_add}
    response = client.responses.create(**ASK, input="What is 17 plus 25?", tool_choice=some)
    (call,) = (item for item in response.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 17, "b": 25})
    if mode == "required":  # which a model that nothing holds to it may not manage
        return
    response = client.responses.create(
        **ASK, input="What is the weather in Rome?", tool_choice=some, max_output_tokens=200
    )
    assert response.status == "completed"
    assert "get_weather" not in [getattr(item, "name", "") for item in response.output]
