"""LangChain for Python, over the Responses API and over Chat Completions."""

from checks import MODEL, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class City(BaseModel):
    """A city."""

    name: str
    country: str


def models():
    for settings in (
        {"use_responses_api": True},
        {"use_responses_api": True, "output_version": "responses/v1", "store": False},
        {"use_responses_api": True, "use_previous_response_id": True},
        {"use_responses_api": False},
    ):
        yield ChatOpenAI(model=MODEL, max_retries=0, stream_usage=True, **settings)


def an_answer():
    for model in models():
        assert model.invoke("hi").text == "Hello there!"


def a_stream():
    for model in models():
        whole = None
        for chunk in model.stream("hi"):
            whole = chunk if whole is None else whole + chunk
        assert whole.text == "Hello there!" and whole.usage_metadata["total_tokens"] > 0


def thinking():
    model = ChatOpenAI(model=MODEL, use_responses_api=True, reasoning={"effort": "low"})
    answer = model.invoke("Think first")
    assert answer.text == "Forty-two."
    assert model.invoke([HumanMessage("Think first"), answer, HumanMessage("Why?")]).text


def a_tool_loop():
    for model in models():
        bound = model.bind_tools([get_weather])
        talk = [HumanMessage("What is the weather in two cities?")]
        response = bound.invoke(talk)
        assert [call["args"]["city"] for call in response.tool_calls] == ["Rome", "Oslo"]
        outputs = [
            ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
            for call in response.tool_calls
        ]
        assert bound.invoke([*talk, response, *outputs]).text == "Sunny in both."


def a_typed_answer():
    for model in models():
        for method in ("json_schema", "json_mode"):
            typed = model.with_structured_output(City, method=method)
            assert typed.invoke("Name a city as JSON") == City(name="Rome", country="Italy")


async def asynchronously():
    for model in models():
        text = [chunk.text async for chunk in model.astream("hi")]
        assert "".join(text) == "Hello there!"


run(an_answer, a_stream, thinking, a_tool_loop, a_typed_answer, asynchronously)
