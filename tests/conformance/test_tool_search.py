"""tool_search: deferred tools are hidden until a search by the server or the client finds them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, Json, Server, engine, local, scripted_engine_of
from tests.conformance.test_tools import allows


def tool(name: str, about: str, **more: Any) -> Json:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {
        "type": "function",
        "name": name,
        "description": about,
        "parameters": parameters,
        **more,
    }


LATER = {"defer_loading": True}
WEATHER = tool("get_weather", "The weather of a city", **LATER)
TOOLS = [
    tool("say_hello", "Greets"),
    WEATHER,
    tool("send_mail", "Sends an e-mail", **LATER),
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers",
        "tools": [tool("list_orders", "Orders of a customer", **LATER)],
    },
]
SERVER, CLIENT = {"type": "tool_search"}, {"type": "tool_search", "execution": "client"}


def tool_call(name: str, arguments: Any) -> str:
    call_text = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call_text}\n</tool_call>"


def rendered_prompts(server: Server) -> list[str]:
    scripted_engine = scripted_engine_of(server)
    return [scripted_engine.text(prompt) for prompt, _ in scripted_engine.requests]


@pytest.mark.requirement("API-TOOL-SEARCH")
async def test_server_searches_and_the_model_continues(serve: Serve, ask: Ask) -> None:
    replies = [
        "<think>\nI need the weather.\n</think>\n\n"
        + tool_call("tool_search", {"query": "weather"}),
        tool_call("get_weather", {"city": "Oslo"}),
    ]
    server = serve(local(engine(replies)))
    answer = await ask(server, tools=[*TOOLS, SERVER])
    _, search, found, call = answer.output
    assert [item["type"] for item in answer.output] == [
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "function_call",
    ]
    assert (search["execution"], search["status"]) == ("server", "completed")
    assert search["arguments"] == {"query": "weather"}
    assert found["call_id"] == search["call_id"]
    assert [each["name"] for each in found["tools"]] == ["get_weather"]
    assert call["name"] == "get_weather" and json.loads(call["arguments"]) == {"city": "Oslo"}
    assert answer.terminal_response["status"] == "completed"
    first, second = rendered_prompts(server)
    assert "say_hello" in first and '"get_weather"' not in first and "tool_search" in first
    # The tools found stand at the end: the beginning is in the cache.
    assert '"get_weather"' in second and second.startswith(first)
    used = answer.terminal_response["usage"]
    sampled = scripted_engine_of(server).sampled
    assert used["output_tokens"] == sum(map(len, sampled))
    assert used["input_tokens_details"]["cached_tokens"] >= len(first)


async def test_found_tools_stay_callable_in_later_responses(
    serve: Serve, ask_foreground: Ask
) -> None:
    replies = [
        tool_call("tool_search", {"query": "orders of a customer"}),
        tool_call("crm__list_orders", {"city": "x"}),
        tool_call("crm__list_orders", {"city": "y"}),
    ]
    server = serve(local(engine(replies)))
    first = await ask_foreground(server, tools=[*TOOLS, SERVER])
    _, found, call = first.output
    assert found["tools"][0]["type"] == "namespace" and found["tools"][0]["name"] == "crm"
    assert (call["namespace"], call["name"]) == ("crm", "list_orders")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "none"}
    second = await ask_foreground(
        server,
        tools=[*TOOLS, SERVER],
        previous_response_id=first.terminal_response["id"],
        input=[output],
    )
    assert second.output[0]["name"] == "list_orders"
    assert rendered_prompts(server)[2].count('"crm__list_orders", "description"') == 1


async def test_client_executes_the_search_on_request(serve: Serve, ask: Ask) -> None:
    replies = [
        tool_call("tool_search", {"query": "mail"}),
        tool_call("send_mail", {"city": "Oslo"}),
    ]
    server = serve(local(engine(replies)))
    first = await ask(server, tools=[*TOOLS, CLIENT])
    (search,) = first.output
    assert search["type"] == "tool_search_call" and search["execution"] == "client"
    assert search["arguments"] == {"query": "mail"} and search["call_id"]
    output = {
        "type": "tool_search_output",
        "call_id": search["call_id"],
        "execution": "client",
        "tools": [TOOLS[2]],
    }
    again: Json = {"tools": [*TOOLS, CLIENT], "previous_response_id": first.terminal_response["id"]}
    second = await ask(server, input=[output], **again)
    assert second.output[0]["name"] == "send_mail"
    shown = rendered_prompts(server)[1]
    assert '"send_mail"' in shown


async def test_empty_search_is_reported_and_invalid_arguments_fail(
    serve: Serve, ask_foreground: Ask
) -> None:
    replies = [
        tool_call("tool_search", {"query": "zzz"}),
        tool_call("tool_search", {"limit": 3}),
        "I give up.",
    ]
    server = serve(local(engine(replies)))
    answer = await ask_foreground(server, tools=[*TOOLS, SERVER])
    kinds = [item["type"] for item in answer.output]
    assert kinds == ["tool_search_call", "tool_search_output", "tool_search_call", "message"]
    assert answer.output[1]["tools"] == [] and answer.output[2]["status"] == "incomplete"
    _, second, third = rendered_prompts(server)
    assert "No tools were found" in second and "needs a query" in third


@pytest.mark.requirement("API-MAX-TOOL-CALLS")
@pytest.mark.parametrize("most", [1, 2])
async def test_calls_beyond_the_limit_are_ignored(serve: Serve, ask: Ask, most: int) -> None:
    two = tool_call("tool_search", {"query": "mail"}) + tool_call(
        "tool_search", {"query": "weather"}
    )
    scripted_engine = engine([two, "Done."])
    server = serve(local(scripted_engine))
    answer = await ask(server, tools=[*TOOLS, SERVER], max_tool_calls=most)
    searches = [item for item in answer.output if item["type"] == "tool_search_call"]
    assert len(searches) == most and answer.text == "Done."
    first, shown = rendered_prompts(server)
    assert ("No more calls are possible" in shown) == (most == 1)
    assert shown.startswith(first)  # of which the engine has the beginning
    constraint = scripted_engine.requests[1][1].constraint
    mail = tool_call("send_mail", {"city": "Oslo"})
    assert allows(constraint, mail, scripted_engine.tokenizer)
    assert allows(constraint, "Done.", scripted_engine.tokenizer)
    assert not allows(constraint, two, scripted_engine.tokenizer)


async def test_deferred_tools_are_shown_without_tool_search(
    serve: Serve, ask_foreground: Ask
) -> None:
    server = serve(local(engine(["Hi"])))
    await ask_foreground(server, tools=TOOLS)
    assert '"get_weather"' in rendered_prompts(server)[0]


async def test_client_function_keeps_its_name(serve: Serve, ask_foreground: Ask) -> None:
    server = serve(local(engine([tool_call("tool_search", {"city": "x"})])))
    answer = await ask_foreground(server, tools=[tool("tool_search", "Mine"), WEATHER, SERVER])
    assert answer.output[0]["type"] == "function_call"
    assert '"tool_search_"' in rendered_prompts(server)[0]


@pytest.mark.requirement("VN-53")
async def test_metrics_count_turns_by_kind(serve: Serve, ask_foreground: Ask) -> None:
    replies = [tool_call("tool_search", {"query": "mail"}), "Done."]
    server = serve(local(engine(replies)))
    answer = await ask_foreground(server, tools=[*TOOLS, SERVER], return_metrics=True)
    metrics = answer.terminal_response["metrics"]
    used = answer.terminal_response["usage"]
    assert len(metrics["input_tokens_per_turn"]) == 2
    assert sum(metrics["input_tokens_per_turn"]) == used["input_tokens"]
    assert sum(metrics["output_tokens_per_turn"]) == used["output_tokens"]
    before, after = metrics["tool_output_tokens_per_turn"]
    assert before == 0 < after
    details = used["input_tokens_details"]
    assert details["input_tokens_per_turn"] == metrics["input_tokens_per_turn"]
    assert details["cached_tokens_per_turn"] == metrics["cached_tokens_per_turn"]
    details = used["output_tokens_details"]
    assert details["output_tokens_per_turn"] == metrics["output_tokens_per_turn"]
    assert (details["tool_output_tokens"], details["tool_output_tokens_per_turn"]) == (
        after,
        [0, after],
    )
