"""pydantic-ai, over the Responses API and over Chat Completions."""

from checks import MODEL, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class City(BaseModel):
    name: str
    country: str


def models():
    return (
        OpenAIResponsesModel(MODEL),
        OpenAIResponsesModel("gpt-5.5"),  # by its name it takes another way with thinking
        OpenAIChatModel(MODEL),
    )


async def an_answer():
    for model in models():
        done = await Agent(model).run("hi")
        assert done.output == "Hello there!" and done.usage.input_tokens > 0


async def a_tool_loop():
    for model in models():
        agent = Agent(model)

        @agent.tool_plain
        def get_weather(city: str) -> str:
            return f"sunny in {city}"

        done = await agent.run("What is the weather in two cities?")
        assert done.output == "Sunny in both."
        more = await agent.run("hi", message_history=done.all_messages())
        assert more.output
        # Under some names, the client asks why the cache did not help.
        details = more.all_messages()[-1].provider_details
        hit = {"type": "cache_hit"}
        assert details.get("prompt_cache_diagnostics", hit) == hit


async def a_stream():
    for model in models():
        async with Agent(model).run_stream("Think first") as stream:
            texts = [text async for text in stream.stream_text(delta=True)]
        assert "".join(texts) == "Forty-two."


async def a_typed_answer():
    for model in models():
        agent = Agent(model, output_type=NativeOutput(City))
        assert (await agent.run("Name a city as JSON")).output == City(name="Rome", country="Italy")


async def thinking_that_is_replayed():
    for model in models():
        agent = Agent(model)
        done = await agent.run("Think first")
        again = await agent.run("Why?", message_history=done.all_messages())
        assert again.output


run(an_answer, a_tool_loop, a_stream, a_typed_answer, thinking_that_is_replayed)
