"""Clients of Anthropic's Messages API: its SDK, LangChain, pydantic-ai and LiteLLM."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # without it, it asks the network

import anthropic
import litellm
from checks import MODEL, PICTURE, run
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
HI = [{"role": "user", "content": "hi"}]
CITIES = "What is the weather in two cities?"
client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


class City(BaseModel):
    name: str
    country: str


def the_sdk():
    answer = client.messages.create(model=MODEL, max_tokens=100, messages=HI)
    assert answer.content[0].text == "Hello there!" and answer.usage.input_tokens > 0
    with client.messages.stream(model=MODEL, max_tokens=100, messages=HI) as stream:
        assert "".join(stream.text_stream) == "Hello there!"
    assert client.messages.count_tokens(model=MODEL, messages=HI).input_tokens > 0
    image = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    content = [{"type": "image", "source": image}, {"type": "text", "text": "Think first"}]
    thought = client.messages.create(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": content}],
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert [block.type for block in thought.content] == ["thinking", "text"]
    assert any(model.id == MODEL for model in client.models.list())


def the_tool_runner():
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=300,
            tools=[get_weather],
            messages=[{"role": "user", "content": CITIES}],
            stream=stream,
        )
        assert runner.until_done().content[0].text == "Sunny in both."


def langchain():
    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    options = {"model": MODEL, "base_url": URL, "api_key": "none", "max_retries": 0}
    model = ChatAnthropic(**options, max_tokens=500)
    assert model.invoke("hi").text == "Hello there!"
    assert "".join(chunk.text for chunk in model.stream("hi")) == "Hello there!"
    thinking = ChatAnthropic(
        **options, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    answer = thinking.invoke("Think first")
    assert answer.text == "Forty-two."
    assert thinking.invoke([HumanMessage("Think first"), answer, HumanMessage("Why?")]).text
    talk = [HumanMessage(CITIES)]
    asked = model.bind_tools([get_weather]).invoke(talk)
    assert [call["args"]["city"] for call in asked.tool_calls] == ["Rome", "Oslo"]
    outputs = [
        ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        for call in asked.tool_calls
    ]
    done = model.bind_tools([get_weather]).invoke([*talk, asked, *outputs])
    assert done.text == "Sunny in both."


async def pydantic_ai():
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key="none"))
    agent = Agent(model)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    done = await agent.run(CITIES)
    assert done.output == "Sunny in both." and done.usage.input_tokens > 0
    assert (await agent.run("hi", message_history=done.all_messages())).output
    async with agent.run_stream("Think first") as stream:
        assert "".join([text async for text in stream.stream_text(delta=True)]) == "Forty-two."
    typed = Agent(model, output_type=NativeOutput(City))
    if model.profile.get("supports_json_schema_output"):
        city = (await typed.run("Name a city as JSON")).output
        assert city == City(name="Rome", country="Italy")


def lite_llm():
    options = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none"}
    answer = litellm.completion(**options, messages=HI, max_tokens=100)
    assert answer.choices[0].message.content == "Hello there!"
    pieces = litellm.completion(**options, messages=HI, max_tokens=100, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == "Hello there!"
    function = {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    asked = litellm.completion(
        **options,
        messages=[{"role": "user", "content": CITIES}],
        tools=[{"type": "function", "function": function}],
        max_tokens=500,
    )
    assert len(asked.choices[0].message.tool_calls) == 2


run(the_sdk, the_tool_runner, langchain, pydantic_ai, lite_llm)
