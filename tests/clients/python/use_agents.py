"""OpenAI's Agents SDK for Python."""

from agents import (
    Agent,
    HostedMCPTool,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from checks import MODEL, run
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(max_retries=0)
model = OpenAIResponsesModel(MODEL, client)
called = []


class City(BaseModel):
    name: str
    country: str


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    called.append(city)
    return "sunny"


async def a_tool_loop():
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[get_weather])
    done = await Runner.run(agent, "What is the weather in Rome?")
    assert done.final_output == "It is sunny in Rome." and called.pop() == "Rome"
    done = await Runner.run(agent, "What is the weather in two cities?")
    assert done.final_output == "Sunny in both." and sorted(called) == ["Oslo", "Rome"]
    again = await Runner.run(agent, [*done.to_input_list(), {"role": "user", "content": "hi"}])
    assert again.final_output


async def a_stream():
    agent = Agent(name="a", model=model, tools=[get_weather])
    streamed = Runner.run_streamed(agent, "What is the weather in Rome?")
    kinds = {event.type async for event in streamed.stream_events()}
    assert streamed.final_output == "It is sunny in Rome."
    assert kinds == {"agent_updated_stream_event", "raw_response_event", "run_item_stream_event"}


async def a_typed_answer():
    agent = Agent(name="a", model=model, output_type=City)
    done = await Runner.run(agent, "Name a city as JSON")
    assert done.final_output == City(name="Rome", country="Italy")


async def a_hand_over():
    poet = Agent(name="poet", model=model)
    agent = Agent(name="a", model=model, handoffs=[poet])
    done = await Runner.run(agent, "Hand me over")
    assert done.final_output == "Roses are red." and done.last_agent is poet


async def thinking_that_is_replayed():
    settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    agent = Agent(name="a", model=model, model_settings=settings)
    done = await Runner.run(agent, "Think first")
    assert done.final_output == "Forty-two."
    again = await Runner.run(agent, [*done.to_input_list(), {"role": "user", "content": "Why?"}])
    assert again.final_output


async def sessions():
    agent = Agent(name="a", model=model, tools=[get_weather])
    ours = OpenAIConversationsSession(openai_client=client)
    for session in (SQLiteSession("s"), ours):
        done = await Runner.run(agent, "What is the weather in Rome?", session=session)
        assert done.final_output == "It is sunny in Rome."
        assert len(await session.get_items()) == 4
        assert (await Runner.run(agent, "Thanks!", session=session)).final_output
        popped = await session.pop_item()
        assert popped["role"] == "assistant"
        await session.clear_session()
    done = await Runner.run(agent, "hi", auto_previous_response_id=True)
    assert done.last_response_id
    more = await Runner.run(agent, "hi", previous_response_id=done.last_response_id)
    assert more.final_output == "Hello there!"


async def a_session_that_is_compacted():
    session = OpenAIResponsesCompactionSession(
        session_id="s", underlying_session=SQLiteSession("s"), client=client, model="gpt-5.5"
    )
    agent = Agent(name="a", model=OpenAIResponsesModel("gpt-5.5", client))
    await Runner.run(agent, "hi", session=session)
    await session.run_compaction({"force": True})
    items = await session.get_items()
    assert "compaction" in [item.get("type") for item in items]
    assert (await Runner.run(agent, "hi", session=session)).final_output


async def a_connection():
    over = OpenAIResponsesWSModel(MODEL, client)
    agent = Agent(name="a", model=over, tools=[get_weather])
    done = await Runner.run(agent, "What is the weather in Rome?", run_config=RunConfig())
    assert done.final_output == "It is sunny in Rome."
    await over.close()


async def tools_that_the_server_runs():
    toys = {"type": "mcp", "server_label": "toys", "allowed_tools": ["add"]}
    free = HostedMCPTool(tool_config={**toys, "require_approval": "never"})
    agent = Agent(name="a", model=model, tools=[free])
    done = await Runner.run(agent, "What is the sum of two and three?")
    assert done.final_output == "It is five."
    kinds = [item.raw_item.type for item in done.new_items if hasattr(item.raw_item, "type")]
    assert kinds == ["mcp_list_tools", "mcp_call", "message"], kinds
    assert done.new_items[1].raw_item.output == "5"
    again = await Runner.run(agent, [*done.to_input_list(), {"role": "user", "content": "Thanks!"}])
    assert again.final_output

    requests = []

    def allow(request):
        requests.append(request.data.name)
        return {"approve": True}

    guarded = HostedMCPTool(
        tool_config={**toys, "require_approval": "always"}, on_approval_request=allow
    )
    agent = Agent(name="a", model=model, tools=[guarded])
    done = await Runner.run(agent, "What is the sum of two and three?")
    assert done.final_output == "It is five." and requests == ["add"]


run(
    tools_that_the_server_runs,
    a_tool_loop,
    a_stream,
    a_typed_answer,
    a_hand_over,
    thinking_that_is_replayed,
    sessions,
    a_session_that_is_compacted,
    a_connection,
)
