"""Asynchronous tools: the model goes on after a call, and its output may come in any later
request."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL, call, custom_call_deltas, event_types
from tests.conformance.server import Answer, Ask, Json, Server, engine, local
from tests.conformance.test_code_harmony import Turns, final
from tests.conformance.test_harmony_chain import gpt_oss
from tests.conformance.test_tool_search import tool_call

pytestmark = pytest.mark.requirement("API-ASYNC-TOOLS")

WEATHER: Json = {**TOOL, "async": True}
TIME: Json = {**TOOL, "name": "get_time"}
SHELL: Json = {"type": "custom", "name": "shell", "async": True}
CRM: Json = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [WEATHER]}
ROME = {"city": "Rome"}
PENDING = "Pending."


def calling(*names: str) -> list[Any]:
    """Return the script of a model that calls functions."""
    return [delta for name in names for delta in call(json.dumps(ROME), name=name)]


def output(call_id: str | None, text: str = "22 degrees", **more: Any) -> Json:
    named = {} if call_id is None else {"call_id": call_id}
    return {"type": "function_call_output", "output": text, **named, **more}


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def calls_of(answer: Answer) -> list[Json]:
    return [item for item in answer.output if item["type"].endswith("_call")]


@pytest.mark.parametrize(
    ("tool", "deltas", "kind"),
    [
        (WEATHER, calling("get_weather"), "function_call"),
        (SHELL, custom_call_deltas("ls"), "custom_tool_call"),
    ],
)
async def test_model_goes_on_in_the_same_response(
    serve: Serve, ask: Ask, tool: Json, deltas: list[Any], kind: str
) -> None:
    backend = ScriptedBackend([deltas, "I have asked."])
    answer = await ask(serve(backend), tools=[tool], tool_choice="required")
    called, message = answer.output
    assert (called["type"], called["async"], called["status"]) == (kind, True, "completed")
    assert message["content"][0]["text"] == "I have asked."
    assert answer.terminal_response["status"] == "completed"
    assert answer.terminal_response["tools"][0].get("description") == tool.get("description")
    assert [options.tool_choice.mode for _, options in backend.requests] == ["required", "auto"]
    if answer.events:
        types = event_types(answer.events)
        done = types.index("output_item.done")
        assert done < len(types) - 1 - types[::-1].index("output_item.added")


async def test_response_ends_at_a_call_that_the_model_waits_for(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend([calling("get_weather", "get_time"), "Noon."])
    server = serve(backend)
    answer = await ask(server, tools=[WEATHER, TIME])
    weather, time = answer.output
    assert (weather["async"], time.get("async")) == (True, None)
    later = await ask(
        server,
        tools=[WEATHER, TIME],
        previous_response_id=answer.terminal_response["id"],
        input=[output(time["call_id"], "12:00")],
    )
    assert later.text == "Noon."
    missing = await ask(
        server, previous_response_id=answer.terminal_response["id"], input=[user("So?")]
    )
    assert missing.rejection["message"] == (
        f"No tool output found for function call {time['call_id']}."
    )


async def test_outputs_may_come_in_any_later_request(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend([calling("get_weather"), "Asked.", "Still.", "22.", "23."])
    server = serve(backend)
    answer = await ask(server, tools=[WEATHER], input="Rome?")
    call_id = answer.output[0]["call_id"]
    # The call stays asynchronous, although the later requests do not declare its tool so.
    turns: list[list[Json]] = [
        [user("And?")],
        [user("Now?"), output(call_id, "22 degrees")],
        [output(call_id, "23 degrees")],
    ]
    for turn in turns:
        answer = await ask(
            server,
            tools=[TOOL],
            input=turn,
            previous_response_id=answer.terminal_response["id"],
        )
    assert answer.text == "23."


async def test_inline_history_may_contain_open_calls(serve: Serve, ask: Ask) -> None:
    server = serve(ScriptedBackend([calling("get_weather"), "Asked.", "Still."]))
    first = await ask(server, tools=[WEATHER], store=False, input=[user("Rome?")])
    items = [user("Rome?"), *first.output, user("And?")]
    second = await ask(server, tools=[WEATHER], store=False, input=items)
    assert second.text == "Still."
    counted = await server.client.post(
        "/v1/responses/input_tokens", json={"model": "tiny", "tools": [WEATHER], "input": items}
    )
    assert counted.status_code == 200, counted.text


async def test_conversation_may_contain_open_calls(serve: Serve, ask: Ask) -> None:
    server = serve(ScriptedBackend([calling("get_weather"), "Asked.", "22."]))
    conversation = (await server.client.post("/v1/conversations", json={})).json()["id"]
    first = await ask(server, tools=[WEATHER], conversation=conversation)
    late = output(first.output[0]["call_id"])
    added = await server.client.post(
        f"/v1/conversations/{conversation}/items", json={"items": [late]}
    )
    assert added.status_code == 200, added.text
    assert (await ask(server, conversation=conversation, input=[user("And?")])).text == "22."


@pytest.mark.parametrize(
    ("scripts", "named"),
    [
        (["get_weather"], {}),
        (["get_weather"], {"name": "get_weather"}),
        (["get_weather", "get_time"], {"name": "get_time"}),
    ],
)
async def test_output_without_call_id_answers_the_only_call(
    serve: Serve, ask: Ask, scripts: list[str], named: Json
) -> None:
    backend = ScriptedBackend([calling(*scripts), "Asked.", "22."])
    server, tools = serve(backend), [WEATHER, {**TIME, "async": True}]
    first = await ask(server, tools=tools)
    second = await ask(
        server,
        previous_response_id=first.terminal_response["id"],
        input=[output(None, **named)],
    )
    assert second.text == "22."
    answered = backend.requests[-1][0].items[-1].call_id
    assert answered == calls_of(first)[-1]["call_id"]


@pytest.mark.parametrize("named", [{}, {"name": "get_weather"}, {"name": "get_time"}])
async def test_output_without_call_id_is_refused_if_it_is_ambiguous(
    serve: Serve, ask: Ask, named: Json
) -> None:
    server = serve(ScriptedBackend([calling("get_weather", "get_weather"), "Asked."]))
    first = await ask(server, tools=[WEATHER])
    refused = await ask(
        server,
        previous_response_id=first.terminal_response["id"],
        input=[user("Hm"), output(None, **named)],
    )
    assert (refused.rejection["param"], refused.rejection["code"]) == (
        "input[1].call_id",
        "missing_required_parameter",
    )


async def test_compaction_keeps_open_calls(serve: Serve, ask: Ask) -> None:
    server = serve(ScriptedBackend([calling("get_weather"), "Asked.", "A summary.", "22."]))
    first = await ask(server, tools=[WEATHER], input="Rome?")
    body = {"model": "tiny", "previous_response_id": first.terminal_response["id"]}
    reply = await server.client.post("/v1/responses/compact", json=body)
    compacted = reply.json()["output"]
    assert reply.status_code == 200, reply.text
    late = output(first.output[0]["call_id"])
    assert (await ask(server, tools=[WEATHER], input=[*compacted, late])).text == "22."


# --- prompts -------------------------------------------------------------------------------------


def chat(name: str) -> LocalBackend:
    calls = tool_call(name, ROME)
    return local(engine([calls, "Asked.", "Still.", "22."]))


def harmony(name: str) -> LocalBackend:
    recipient = name.replace("__", ".")
    calls = (
        f"<|channel|>commentary to=functions.{recipient} <|constrain|>json<|message|>"
        f"{json.dumps(ROME)}<|call|>"
    )
    scripted = Turns(calls, final("Asked."), final("Still."), final("22."))
    return LocalBackend(scripted, gpt_oss.dialect())


def prompts_of(server: Server) -> list[str]:
    scripted = cast(Any, server.backend).engine
    prompts: list[str] = getattr(scripted, "prompts", None) or [
        scripted.text(prompt) for prompt, _ in scripted.requests
    ]
    return prompts


@pytest.mark.parametrize("model", [chat, harmony])
async def test_model_sees_the_call_as_pending_and_its_output_where_it_arrives(
    serve: Serve, ask: Ask, model: Callable[[str], LocalBackend]
) -> None:
    server = serve(model("get_weather"))
    first = await ask(server, tools=[WEATHER], input="Rome?")
    assert first.text == "Asked.", first.output
    second = await ask(
        server,
        tools=[WEATHER],
        input="And?",
        previous_response_id=first.terminal_response["id"],
    )
    await ask(
        server,
        tools=[WEATHER],
        input=[user("Now?"), output(first.output[0]["call_id"])],
        previous_response_id=second.terminal_response["id"],
    )
    prompts = prompts_of(server)
    assert "runs in the background" in prompts[0]
    for before, after in itertools.pairwise(prompts):
        assert after.startswith(before)
    assert [prompt.count(PENDING) for prompt in prompts] == [0, 1, 1, 1]
    tail = prompts[-1][len(prompts[-2]) :]
    assert tail.index("Still.") < tail.index("Now?") < tail.index("Rome")
    assert tail.index("Rome") < tail.index("22 degrees")


async def test_member_of_a_namespace_may_be_asynchronous(serve: Serve, ask: Ask) -> None:
    server = serve(chat("crm__get_weather"))
    first = await ask(server, tools=[CRM])
    called = first.output[0]
    assert (called["name"], called["namespace"], called["async"]) == ("get_weather", "crm", True)
    assert first.text == "Asked."


@pytest.mark.parametrize(
    "tool", [{**CRM, "async": True}, {"type": "shell", "async": True}], ids=["namespace", "shell"]
)
async def test_only_functions_and_custom_tools_may_be_asynchronous(
    serve: Serve, ask: Ask, tool: Json
) -> None:
    refused = (await ask(serve(), tools=[tool])).rejection
    assert (refused["param"], refused["code"]) == ("tools[0].async", "unknown_parameter")
