"""Anthropic's Messages API, through the official client."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import AsyncIterator
from typing import Any, get_args, get_type_hints

import httpx2
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.compat.messages.bodies import MessageBlock, MessageTool
from antiphon.compat.messages.request import MESSAGE_FIELDS
from antiphon.compat.messages.toolsets import TOOLSETS
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import BackendError
from antiphon.resources.skills import Skills
from antiphon.store.base import Store
from antiphon.stream.deltas import Close, Finish, Open, Text
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import FETCH_TYPE, TYPES, WebSearchProvider
from antiphon.wire.items import FunctionCall, InputImage, InputText, Message, Reasoning
from antiphon.wire.response import InputTokensDetails, OutputTokensDetails, Usage
from tests.attachments.samples import pdf
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import (
    code_interpreter_options,
    containers,
    run_command,
)
from tests.conformance.server import Server, engine, local
from tests.conformance.test_compaction import COMPACTION_NOTICE, SEAL
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.tools.mcp.process import Toys

Json = dict[str, Any]
HI: Json = {"max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Json = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
CLEAR: Json = {"type": "clear_tool_uses_20250919"}
ONE_USE: Json = {"type": "tool_uses", "value": 1}
PLACE = "messages[0].content[1]"
TOOLSET: Json = {"type": "mcp_toolset", "mcp_server_name": "desk"}
MCP: Json = {"mcp_servers": [{"type": "url", "name": "desk", "url": "http://desk.example/mcp"}]}
ROME = tool_call("get_weather", {"city": "Rome"})
OSLO = tool_call("get_weather", {"city": "Oslo"})
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
USAGE = Usage(
    input_tokens=5,
    input_tokens_details=InputTokensDetails(cached_tokens=2),
    output_tokens=4,
    output_tokens_details=OutputTokensDetails(reasoning_tokens=1),
    total_tokens=9,
)
SAID: tuple[Any, ...] = (
    Open(Reasoning()),
    Text("Hmm."),
    Close(),
    Open(Message(role="assistant", content=())),
    Text("Let me "),
    Text("look."),
    Close(),
    Open(FunctionCall(call_id="call_1", name="get_weather", arguments="")),
    Text('{"city":'),
    Text(' "Rome"}'),
    Close(),
    Open(FunctionCall(call_id="call_2", name="get_time", arguments="")),
    Close(),
    Finish("stop", USAGE),
)


@pytest.fixture
async def clients() -> AsyncIterator[Any]:
    from tests.conformance.anthropic_sdk import AsyncAnthropic

    made: list[AsyncAnthropic] = []

    def make(server: Server) -> AsyncAnthropic:
        transport = httpx2.ASGITransport(server.app)
        made.append(
            AsyncAnthropic(
                base_url="http://localhost",
                api_key="none",
                max_retries=0,
                http_client=httpx2.AsyncClient(transport=transport),
            )
        )
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def create(server: Server, *, beta: bool = False, **body: Any) -> Json:
    """Return an answer, after strict validation with the official client's type."""
    from tests.conformance.anthropic_sdk import BetaMessage
    from tests.conformance.anthropic_sdk import Message as SdkMessage

    reply = await server.client.post("/v1/messages", json={"model": "tiny", **HI, **body})
    assert reply.status_code == 200, reply.text
    (BetaMessage if beta else SdkMessage).model_validate_json(reply.content, strict=True)
    answer: Json = reply.json()
    return answer


async def stream_events(server: Server, **body: Any) -> list[Json]:
    """Return the events of a stream, each validated strictly with the official client's type."""
    from tests.conformance.anthropic_sdk import EVENT

    body = {"model": "tiny", "stream": True, **HI, **body}
    reply = await server.client.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    *frames, rest = reply.text.split("\n\n")
    assert rest == ""
    found: list[Json] = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        if found[-1]["type"] not in ("error", "ping"):
            EVENT.validate_json(data.removeprefix("data: "), strict=True)
    return found


async def rejection(server: Server, path: str = "messages", **body: Any) -> tuple[int, str]:
    """Return the status and the message of an error, whose form is checked."""
    reply = await server.client.post(f"/v1/{path}", json={"model": "tiny", **HI, **body})
    value = reply.json()
    assert set(value) == {"type", "error", "request_id"} and value["type"] == "error"
    assert set(value["error"]) - {"details"} == {"type", "message"}
    assert value["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    return reply.status_code, value["error"]["message"]


def blocks(answer: Any) -> list[Json]:
    """The content of an answer of the client, as a request sends it back."""
    return [block.model_dump(exclude_none=True) for block in answer.content]


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-ANSWER")
async def test_answer_has_blocks_of_every_item(serve: Serve) -> None:
    answer = await create(serve([SAID]), tools=[WEATHER])
    thinking, *others = answer["content"]
    assert thinking.pop("signature")
    assert thinking == {"type": "thinking", "thinking": "Hmm."}
    call = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Rome"}}
    assert others == [
        {"type": "text", "text": "Let me look."},
        call,
        {"type": "tool_use", "id": "call_2", "name": "get_time", "input": {}},
    ]
    assert answer["id"].startswith("msg_") and answer["model"] == "tiny"
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    assert answer["usage"] == {
        "input_tokens": 3,
        "output_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 1},
    }


@pytest.mark.requirement("AM-STREAM")
async def test_stream_numbers_its_blocks(serve: Serve) -> None:
    start, *middle, delta, stop = await stream_events(serve([SAID]), tools=[WEATHER])
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert (delta["delta"], stop["type"]) == (
        {"stop_reason": "tool_use", "stop_sequence": None},
        "message_stop",
    )
    assert delta["usage"]["input_tokens"] == 3 and delta["usage"]["output_tokens"] == 4
    steps = [(each["index"], each["type"].rpartition("_")[2]) for each in middle]
    assert steps == [
        *((0, step) for step in ("start", "delta", "delta", "stop")),
        *((1, step) for step in ("start", "delta", "delta", "stop")),
        *((2, step) for step in ("start", "delta", "delta", "stop")),
        *((3, step) for step in ("start", "stop")),
    ]
    deltas = [each["delta"] for each in middle if "delta" in each]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Hmm."}
    assert deltas[1]["type"] == "signature_delta" and deltas[1]["signature"]
    assert deltas[2:] == [
        {"type": "text_delta", "text": "Let me "},
        {"type": "text_delta", "text": "look."},
        {"type": "input_json_delta", "partial_json": '{"city":'},
        {"type": "input_json_delta", "partial_json": ' "Rome"}'},
    ]


@pytest.mark.requirement("AM-STREAM")
async def test_official_client_accumulates_the_same_message(serve: Serve, clients: Any) -> None:
    client = clients(serve(local(engine([f"<think>\nHm.\n</think>\n\nSure. {ROME}\n{OSLO}"]))))
    whole = await client.messages.create(model="tiny", **HI, tools=[WEATHER])
    async with client.messages.stream(model="tiny", **HI, tools=[WEATHER]) as stream:
        final = await stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in final.content[2:]] == [{"city": "Rome"}, {"city": "Oslo"}]
    for one, other in zip(blocks(whole), blocks(final), strict=True):
        changing = ("id", "signature")
        assert {k: v for k, v in one.items() if k not in changing} == {
            k: v for k, v in other.items() if k not in changing
        }
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)


@pytest.mark.requirement("AM-STOP")
@pytest.mark.parametrize(
    ("finish", "limit", "expected"),
    [
        (Finish("stop", USAGE), 100, "end_turn"),
        (Finish("length", USAGE), 4, "max_tokens"),
        (Finish("length", USAGE), 100, "model_context_window_exceeded"),
        (Finish("content_filter", USAGE), 100, "refusal"),
        (Finish("turns", USAGE), 100, "pause_turn"),
    ],
)
async def test_stop_reason_says_why_the_output_ended(
    serve: Serve, finish: Finish, limit: int, expected: str
) -> None:
    server = serve([(Open(Message(role="assistant", content=())), Text("Hel"), finish)])
    assert (await create(server, max_tokens=limit))["stop_reason"] == expected
    ends = (await stream_events(server, max_tokens=limit))[-2]
    assert ends["delta"]["stop_reason"] == expected


@pytest.mark.requirement("AM-STOP")
async def test_stop_sequence_is_named(serve: Serve) -> None:
    server = serve(engine(["one STOP two"]))
    stops = {"stop_sequences": ["END", "STOP"]}
    answer = await create(server, **stops)
    assert answer["content"] == [{"type": "text", "text": "one "}]
    ends = {"stop_reason": "stop_sequence", "stop_sequence": "STOP"}
    assert {name: answer[name] for name in ends} == ends
    assert (await stream_events(server, **stops))[-2]["delta"] == ends


@pytest.mark.requirement("AM-STOP")
async def test_refusal_is_text_with_a_reason_of_its_own(serve: Serve) -> None:
    said = (
        Open(Message(role="assistant", content=())),
        Text("I will not.", channel="refusal"),
        Close(),
    )
    server = serve([said])
    answer = await create(server)
    assert answer["content"] == [{"type": "text", "text": "I will not."}]
    assert answer["stop_reason"] == "refusal"
    assert answer["stop_details"]["explanation"] == "I will not."
    assert {"type": "text_delta", "text": "I will not."} in [
        each.get("delta") for each in await stream_events(server)
    ]


async def test_arguments_that_are_no_object_are_not_lost(serve: Serve) -> None:
    cut = (*SAID[7:9], Finish("length", USAGE))
    (call,) = (await create(serve([cut]), tools=[WEATHER], max_tokens=4))["content"]
    assert call["input"] == {"INVALID_JSON": '{"city":'}


async def test_prompt_is_only_cached_if_no_tokens_may_be_written(serve: Serve) -> None:
    server = serve(local(engine(["Hello"])))
    answer = await create(server, max_tokens=0)
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")
    assert (await create(server))["usage"]["cache_read_input_tokens"] > 0


async def test_keepalives_are_pings(serve: Serve) -> None:
    server = serve(ScriptedBackend(("Hello there!",), wait_s=0.05), keepalive_s=0.02)
    assert "ping" in [event["type"] for event in await stream_events(server)]


# --- requests ------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-PROMPT")
async def test_conversation_reaches_the_model_in_order(serve: Serve) -> None:
    server = serve(local(engine(["Sunny."])))
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "sun"}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look it up.", "signature": "foreign"},
                {"type": "text", "text": "Wait."},
                call,
            ],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
        {"role": "assistant", "content": "Sunny."},
        {"role": "system", "content": "Shout."},
        {"role": "user", "content": "More."},
    ]
    billing = "x-anthropic-billing-header: cc_version=1;"
    system = [{"type": "text", "text": text} for text in (billing, "Be brief.", "Be kind.")]
    await create(server, system=system, messages=turns, tools=[WEATHER])
    (prompt,) = rendered_prompts(server)
    order = ["Be brief.", "Be kind.", "Rome?", "Look it up.", "Wait.", '"city": "Rome"']
    order += ["The tool call failed.", "sun", "And now?", "Sunny.", "More."]
    places = [prompt.index(word) for word in order]
    assert places == sorted(places)
    assert "Shout." in prompt and "billing" not in prompt


@pytest.mark.requirement("AM-PROMPT")
async def test_media_become_input_parts(serve: Serve) -> None:
    backend = ScriptedBackend()
    image = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    content = [
        {"type": "image", "source": image, "cache_control": {"type": "ephemeral"}},
        {
            "type": "document",
            "title": "notes.txt",
            "context": "From the archive.",
            "source": {"type": "text", "media_type": "text/plain", "data": "It is 205 km."},
        },
        {
            "type": "search_result",
            "title": "Fjords",
            "source": "https://north.example",
            "content": [{"type": "text", "text": "A fjord is an inlet."}],
        },
        {"type": "document", "title": "T", "source": {"type": "content", "content": "inside"}},
    ]
    await create(serve(backend), messages=[{"role": "user", "content": content}])
    (message,) = backend.requests[-1][0].items
    assert isinstance(message, Message)
    picture, *texts = message.content
    assert isinstance(picture, InputImage)
    assert picture.image_url == f"data:image/png;base64,{PIXEL}"
    assert texts == [
        InputText(text=text)
        for text in (
            "From the archive.",
            "[file 'notes.txt']\nIt is 205 km.",
            "Fjords (https://north.example)\nA fjord is an inlet.",
            "T",
            "inside",
        )
    ]


@pytest.mark.requirement("AM-PROMPT")
async def test_last_message_of_the_assistant_is_continued(serve: Serve) -> None:
    server = serve(local(engine([" Rome."])))
    turns = [*HI["messages"], {"role": "assistant", "content": "The city is"}]
    answer = await create(server, messages=turns)
    assert answer["content"][0]["text"] == " Rome."
    assert rendered_prompts(server)[0].endswith("assistant\nThe city is")


async def test_options_reach_the_engine(serve: Serve) -> None:
    scripted = engine(["Hello"])
    await create(
        serve(local(scripted)),
        max_tokens=50,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["END"],
        metadata={"user_id": "ada" * 100},
        service_tier="standard_only",
        cache_control={"type": "ephemeral"},
        speed="fast",
        system="",
        tools=[],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    (_, sampling) = scripted.requests[0]
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0.5, 0.9)
    assert (sampling.top_k, sampling.stop) == (3, ("END",))


# --- thinking ------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-THINKING")
@pytest.mark.parametrize("display", ["summarized", "omitted", "updates"])
async def test_signature_brings_the_reasoning_back(serve: Serve, display: str) -> None:
    server = serve(local(engine([f"<think>\nA secret.\n</think>\n\n{ROME}", "Sunny."])))
    thinking = {"type": "adaptive", "display": display}
    answer = await create(server, tools=[WEATHER], thinking=thinking)
    shown, call = answer["content"]
    assert shown["thinking"] == ("A secret." if display == "summarized" else "")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": []}
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    await create(server, tools=[WEATHER], thinking=thinking, messages=turns)
    assert "A secret." in rendered_prompts(server)[1]
    turns[1] = {
        "role": "assistant",
        "content": [{"type": "redacted_thinking", "data": shown["signature"]}, call],
    }
    await create(server, tools=[WEATHER], messages=turns)
    assert "A secret." in rendered_prompts(server)[2]


@pytest.mark.requirement("AM-THINKING")
async def test_omitted_thinking_shows_progress(serve: Serve) -> None:
    said = (Open(Reasoning()), *(Text("hm ") for _ in range(40)), *SAID[2:])
    events = await stream_events(serve([said]), thinking={"type": "adaptive", "display": "omitted"})
    deltas = [each["delta"] for each in events if each.get("index") == 0 and "delta" in each]
    assert [each.get("estimated_tokens") for each in deltas] == [16, 16, None]
    assert deltas[-1]["signature"] and not any(each.get("thinking") for each in deltas)


async def test_answer_names_the_parts_that_the_model_cannot_read(serve: Serve) -> None:
    scripted = engine(["ok"])
    dialect = ChatDialect(scripted.card, scripted.tokenizer, unreadable="describe")
    server = serve(LocalBackend(scripted, dialect))
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    seen = [{"role": "user", "content": content}]
    omitted = [{"type": "input_image", "param": "messages[0].content[1]"}]
    assert (await create(server, messages=seen))["omitted_parts"] == omitted
    *_, end, _ = await stream_events(server, messages=seen)
    assert end["omitted_parts"] == omitted


async def test_message_begins_with_the_tokens_of_the_prompt(serve: Serve) -> None:
    start, *_, end, _ = await stream_events(serve(local(engine(["Hi"]))))
    assert start["message"]["usage"]["input_tokens"] == end["usage"]["input_tokens"] > 0


async def test_thinking_budget_and_effort_reach_the_model(serve: Serve) -> None:
    backend = ScriptedBackend()
    server = serve(backend)
    await create(server, thinking={"type": "enabled", "budget_tokens": 1024})
    await create(server, thinking={"type": "adaptive"}, output_config={"effort": "max"})
    await create(server, thinking={"type": "disabled"}, output_config={"effort": "max"})
    options = [options for _, options in backend.requests]
    assert [each.thinking_budget for each in options] == [1024, None, None]
    efforts = [each.reasoning and each.reasoning.effort for each in options]
    assert efforts == [None, "max", "none"]


@pytest.mark.requirement("AM-THINKING")
async def test_older_thinking_can_be_cleared(serve: Serve) -> None:
    backend = ScriptedBackend()
    turns: list[Json] = []
    for word in ("old", "new"):
        thought = {"type": "thinking", "thinking": word, "signature": ""}
        turns += HI["messages"]
        turns += [{"role": "assistant", "content": [thought, {"type": "text", "text": "Hi."}]}]
    turns += HI["messages"]
    for keep, expected in (
        ({"type": "thinking_turns", "value": 1}, ["new"]),
        ({"type": "thinking_turns", "value": 2}, ["old", "new"]),
        ({"type": "all"}, ["old", "new"]),
    ):
        edits = [{"type": "clear_thinking_20251015", "keep": keep}]
        answer = await create(
            serve(backend), beta=True, messages=turns, context_management={"edits": edits}
        )
        reported = answer["context_management"]["applied_edits"]
        assert [edit["cleared_thinking_turns"] for edit in reported] == [1] * (len(expected) < 2)
        items = backend.requests[-1][0].items
        thoughts = [item.content for item in items if isinstance(item, Reasoning)]
        assert [parts[0].text for parts in thoughts if parts] == expected


# --- tools ---------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-TOOLS")
async def test_official_client_runs_a_tool_loop(serve: Serve, clients: Any) -> None:
    server = serve(local(engine([f"{ROME}\n{OSLO}", "Sunny in both."])))
    client = clients(server)
    turns: list[Any] = list(HI["messages"])
    first = await client.messages.create(
        model="tiny", max_tokens=200, messages=turns, tools=[WEATHER]
    )
    text = {"type": "text", "text": "sun"}
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [text]} for call in first.content
    ]
    turns += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": results},
    ]
    last = await client.messages.create(
        model="tiny", max_tokens=200, messages=turns, tools=[WEATHER]
    )
    assert (last.content[0].text, last.stop_reason) == ("Sunny in both.", "end_turn")
    assert rendered_prompts(server)[1].count("tool\nsun<|end|>") == 2


@pytest.mark.requirement("AM-PROMPT")
@pytest.mark.parametrize(
    ("edit", "cleared"),
    [
        ({}, []),
        ({"trigger": {"type": "tool_uses", "value": 4}}, [0]),
        ({"trigger": {"type": "input_tokens", "value": 1}, "exclude_tools": ["tool0"]}, []),
        ({"trigger": {"type": "input_tokens", "value": 1}, "keep": ONE_USE}, [0, 1, 2]),
        (
            {
                "trigger": {"type": "input_tokens", "value": 1},
                "clear_at_least": {"type": "input_tokens", "value": 9_000},
            },
            [],
        ),
    ],
)
async def test_old_tool_results_can_be_cleared(
    serve: Serve, clients: Any, edit: Json, cleared: Json
) -> None:
    turns: list[Json] = list(HI["messages"])
    for index in range(4):
        use = {"type": "tool_use", "id": f"c{index}", "name": f"tool{index}", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"c{index}", "content": f"result{index}"}
        turns += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    server = serve(local(engine(["Hi"])))
    edits = [{"type": "clear_tool_uses_20250919", **edit}]
    answer = await create(server, beta=True, messages=turns, context_management={"edits": edits})
    reported = answer["context_management"]["applied_edits"]
    assert [edit["cleared_tool_uses"] for edit in reported] == ([len(cleared)] if cleared else [])
    (prompt,) = rendered_prompts(server)
    assert [index for index in range(4) if f"result{index}" not in prompt] == cleared
    counted = await clients(server).beta.messages.count_tokens(
        model="tiny", messages=turns, context_management={"edits": edits}
    )
    assert counted.input_tokens == answer["usage"]["input_tokens"]
    original = counted.context_management.original_input_tokens
    assert original - counted.input_tokens == sum(each["cleared_input_tokens"] for each in reported)


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-THREADS")
@pytest.mark.parametrize("stream", [False, True])
async def test_tool_runner_of_the_official_client_sends_only_new_messages(
    serve: Serve, clients: Any, stream: bool
) -> None:
    from tests.conformance.anthropic_sdk import beta_async_tool

    @beta_async_tool
    async def get_weather(city: str) -> str:
        return f"sun in {city}"

    server = serve(local(engine([f"Let me look.\n{ROME}", "It is sunny.", "In both."])))
    client = clients(server)
    runner = client.beta.messages.tool_runner(
        model="tiny", tools=[get_weather], system="Be brief.", stream=stream, **HI
    )
    last = await runner.until_done()
    assert last.content[0].text == "It is sunny."
    first, second = rendered_prompts(server)
    assert "Be brief." in second and "get_weather" in second and "sun in Rome" in second
    assert second.startswith(first)
    stored = (await server.client.get(f"/v1/responses/resp_{last.id[4:]}")).json()
    assert stored["previous_response_id"] and stored["instructions"] == "Be brief."


@pytest.mark.requirement("AM-THREADS")
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_tool_choice_names_the_tools_of_the_thread(serve: Serve, choice: Json) -> None:
    server = serve(local(engine([ROME, OSLO])))
    body: Json = {"tool_choice": choice}
    first = await create(server, thread={"type": "create"}, tools=[WEATHER], **body)
    (use,) = first["content"]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "sun"}
    body["messages"] = [{"role": "user", "content": [result]}]
    body["thread"] = {"type": "continue", "previous_message_id": first["id"]}
    assert (await create(server, **body))["content"][0]["input"] == {"city": "Oslo"}
    body["tool_choice"] = {"type": "tool", "name": "fly"}
    assert "tool_choice" in (await rejection(server, **body))[1]


@pytest.mark.requirement("AM-THREADS")
async def test_tool_search_keeps_its_name_in_a_thread(serve: Serve) -> None:
    server = serve(local(engine(["Hello.", tool_call("tool_search", {"query": "weather"}), ROME])))
    search: Json = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    tools = [search, {**WEATHER, "defer_loading": True}]
    first = await create(server, thread={"type": "create"}, tools=tools)
    thread = {"type": "continue", "previous_message_id": first["id"]}
    call, _, use = (await create(server, thread=thread))["content"]
    assert (call["name"], use["name"]) == ("tool_search_tool_regex", "get_weather")


@pytest.mark.requirement("AM-THREADS")
async def test_lost_thread_is_sent_again_as_a_new_one(serve: Serve, clients: Any) -> None:
    server = serve(local(engine(["Hi", "Again"])))
    thread = clients(server).beta.messages.thread(model="tiny", **HI)
    first = await thread.send()
    await server.client.delete(f"/v1/responses/resp_{first.id[4:]}")
    await thread.send({"role": "user", "content": "And now?"})
    assert len(thread.messages) == 4
    assert "hi" in rendered_prompts(server)[1] and "And now?" in rendered_prompts(server)[1]
    body = {**HI, "model": "tiny", "thread": {"type": "continue", "previous_message_id": "msg_0"}}
    reply = await server.client.post("/v1/messages", json=body)
    assert reply.status_code == 404
    assert reply.json()["error"]["details"] == {"error_code": "thread_not_found"}


@pytest.mark.requirement("AM-THREADS")
async def test_request_that_a_thread_cannot_keep_goes_on_without_it(
    serve: Serve, clients: Any
) -> None:
    server = serve(local(engine(["Hi"])))
    hidden = {**WEATHER, "defer_loading": True}
    body = {**HI, "model": "tiny", "thread": {"type": "create"}, "tools": [hidden]}
    reply = await server.client.post("/v1/messages", json=body)
    assert reply.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["tools"]}
    assert reply.json()["error"]["details"] == details
    runner = clients(server).beta.messages.tool_runner(model="tiny", tools=[hidden], **HI)
    assert (await runner.until_done()).content[0].text == "Hi"


@pytest.mark.requirement("AM-TOOLS")
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
async def test_tool_choice_forces_a_call(serve: Serve, choice: Json) -> None:
    scripted = engine([f"{ROME}\n{OSLO}"])
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = await create(serve(local(scripted)), tools=[WEATHER], tool_choice=choice)
    assert [block["type"] for block in answer["content"]] == ["tool_use"]
    constraint = scripted.requests[0][1].constraint
    assert constraint is not None and constraint.needed


@pytest.mark.requirement("AM-TOOLS")
async def test_examples_belong_to_the_description(serve: Serve) -> None:
    server = serve(local(engine(["Hi"])))
    await create(server, tools=[{**WEATHER, "input_examples": [{"city": "Bergen"}]}])
    assert "Bergen" in rendered_prompts(server)[0]
    await create(server, tools=[WEATHER], tool_choice={"type": "none"})
    assert "get_weather" not in rendered_prompts(server)[1]


@pytest.mark.requirement("AM-TOOL-CHANGES")
async def test_conversation_adds_and_removes_tools(serve: Serve) -> None:
    server = serve(local(engine(["Hi"])))
    late = {**WEATHER, "name": "late_tool", "defer_loading": True}
    find = {**WEATHER, "name": "find_tools"}
    named = {"type": "tool_reference", "tool_name": "late_tool"}
    turns = [
        *HI["messages"],
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "find_tools", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": [named]}],
        },
    ]
    changes = [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}},
        {
            "type": "tool_addition",
            "tool": {"type": "tool_definition", "definition": {**find, "name": "newest"}},
        },
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "newest"}},
    ]
    tools = [WEATHER, find, late]
    for messages in (
        HI["messages"],
        turns,
        [*turns, {"role": "system", "content": changes}, *HI["messages"]],
    ):
        await create(server, tools=tools, messages=messages)
    names = ("get_weather", "find_tools", "late_tool", "newest")
    offered = [
        [name for name in names if f'"name": "{name}", "description"' in prompt]
        for prompt in rendered_prompts(server)
    ]
    assert offered == [
        ["get_weather", "find_tools"],
        ["get_weather", "find_tools", "late_tool"],
        ["find_tools", "late_tool", "newest"],
    ]
    assert "The tool late_tool can be called now." in rendered_prompts(server)[1]


async def test_system_message_can_end_with_the_turn(serve: Serve) -> None:
    server = serve(local(engine(["Hi"])))
    note = {"role": "system", "content": "Only now.", "clear_at": "next_user_message"}
    await create(server, messages=[*HI["messages"], note])
    await create(server, messages=[*HI["messages"], note, *HI["messages"]])
    assert ["Only now." in prompt for prompt in rendered_prompts(server)] == [True, False]


@pytest.mark.requirement("AM-TOOLS")
async def test_client_tools_with_fixed_schemas_are_functions(serve: Serve) -> None:
    scripted = engine([tool_call("bash", {"command": "ls"})])
    scripted.card = replace(scripted.card, context_size=32_768)
    server = serve(local(scripted))
    tools: list[Json] = [
        {"type": "bash_20250124", "name": "bash"},
        {
            "type": "text_editor_20250728",
            "name": "str_replace_based_edit_tool",
            "max_characters": 9,
        },
        {"type": "memory_20250818", "name": "memory"},
        {
            "type": "computer_20251124",
            "name": "computer",
            "display_width_px": 640,
            "enable_zoom": True,
        },
    ]
    answer = await create(server, tools=tools)
    assert answer["content"][0]["input"] == {"command": "ls"}
    (prompt,) = rendered_prompts(server)
    assert all(text in prompt for text in ("at most 9 characters", "rename", "640 pixels", "zoom"))


@pytest.mark.requirement("AM-TOOLS")
@pytest.mark.parametrize("toolset", ["computer", "browser"])
async def test_toolsets_are_the_tools_that_the_client_runs(
    serve: Serve, clients: Any, toolset: str
) -> None:
    from tests.conformance.anthropic_sdk import TOOLSET_MEMBERS

    replies = [tool_call(f"{toolset}__screenshot", {}), "A cat."]
    scripted = engine(replies)
    scripted.card = replace(scripted.card, context_size=32_768)
    server = serve(local(scripted))
    tool: Json = {"type": f"{toolset}_toolset_20260801", "configs": {"wait": {"enabled": False}}}
    named: Json = {"name": "screenshot", "description": "Mine.", "input_schema": SCHEMA}
    body: Json = {"model": "tiny", "max_tokens": 400, "tools": [tool, named]}
    async with clients(server).beta.messages.stream(**body, messages=HI["messages"]) as stream:
        answer = await stream.get_final_message()
    (use,) = answer.content
    assert (use.name, use.toolset_name, use.input) == ("screenshot", toolset, {})
    state = {"type": "browser_state", "tabs": [{"tab_id": "t1", "url": "u", "title": "Cats"}]}
    result = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": [{"type": "text", "text": "ok"}, *([state] if toolset == "browser" else [])],
    }
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": blocks(answer)},
        {"role": "user", "content": [result]},
    ]
    assert (await create(server, **body, messages=turns))["content"][0]["text"] == "A cat."
    first, second = rendered_prompts(server)
    for name, fields in TOOLSET_MEMBERS[toolset].items():
        assert (f"{toolset}__{name}" in first) == (name != "wait"), name
        _, required, optional = TOOLSETS[tool["type"]][1][name]
        assert dict.fromkeys(required, True) | dict.fromkeys(optional, False) == fields, name
    assert toolset == "computer" or "t1 u Cats" in second
    tool["configs"] = {"fly": {}}
    assert "tools[0].configs" in (await rejection(server, tools=[tool]))[1]


@pytest.mark.requirement("AM-SERVER-TOOLS")
async def test_code_runs_in_a_container_of_this_server(serve: Serve, clients: Any) -> None:
    registry = containers()
    replies = [tool_call("python", {"code": "print(6 * 7)"}), "It is 42.", "Yes."]
    server = serve(local(engine(replies)), **code_interpreter_options(registry))
    client = clients(server)
    tool: Json = {"type": "code_execution_20250825", "name": "code_execution"}
    async with client.beta.messages.stream(model="tiny", **HI, tools=[tool]) as stream:
        answer = await stream.get_final_message()
    call, result, text = answer.content
    assert (call.name, text.text) == ("code_execution", "It is 42.")
    assert "6 * 7" in call.input["code"] and result.content.return_code == 0
    assert result.tool_use_id == call.id and answer.container.id.startswith("cntr_")
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": blocks(answer)},
        {"role": "user", "content": "Sure?"},
    ]
    body = {"tools": [tool], "container": answer.container.id}
    assert (await create(server, messages=turns, **body))["content"][0]["text"] == "Yes."
    assert len(answer.usage.iterations) == 2
    assert sum(each.output_tokens for each in answer.usage.iterations) == answer.usage.output_tokens
    assert "6 * 7" in rendered_prompts(server)[-1].partition("Sure?")[0]


@pytest.mark.requirement("AM-SERVER-TOOLS")
async def test_uploaded_file_is_in_the_container(serve: Serve) -> None:
    registry = containers()
    replies = [tool_call("python", {"code": "print(1)"}), "It is 1.", "Yes."]
    server = serve(local(engine(replies)), **code_interpreter_options(registry))
    tool: Json = {"type": "code_execution_20250825", "name": "code_execution"}
    upload = {"type": "container_upload", "file_id": "file-1"}
    turns: list[Json] = [{"role": "user", "content": [{"type": "text", "text": "Add."}, upload]}]
    answer = await create(server, beta=True, messages=turns, tools=[tool])
    assert "file-1" in rendered_prompts(server)[0]
    container = answer["container"]["id"]
    files = (await server.get(f"containers/{container}/files")).json()["data"]
    assert [each["path"] for each in files] == ["/mnt/data/numbers.csv"]
    turns += [{"role": "assistant", "content": answer["content"]}, *HI["messages"]]
    await create(server, beta=True, messages=turns, tools=[tool], container=container)
    for more, param in (({}, "messages[0].content[1]"), ({"tools": [tool]}, f"{PLACE}.file_id")):
        wrong = [{"role": "user", "content": [turns[0]["content"][0], {**upload, "file_id": "x"}]}]
        refused = await server.client.post(
            "/v1/messages", json={"model": "tiny", "max_tokens": 9, "messages": wrong, **more}
        )
        assert param in refused.json()["error"]["message"], refused.text


SKILL = [
    ("dice/SKILL.md", b"---\nname: dice\ndescription: Rolls dice.\n---\nPrint 4."),
    ("dice/roll.py", b"print(4)"),
]


@pytest.mark.requirement("AM-SKILLS")
async def test_skills_have_the_form_of_the_official_client(serve: Serve, clients: Any) -> None:
    from tests.conformance import anthropic_sdk as sdk

    server = serve(local(engine(["Hi"])))
    skills = clients(server).beta.skills
    made = sdk.BetaSkill.model_validate((await skills.create(files=SKILL)).model_dump())
    assert (made.display_name, made.latest_version_id, made.source.type) == ("dice", "1", "custom")
    added = sdk.BetaSkillVersion.model_validate(
        (await skills.versions.create(made.id, files=SKILL)).model_dump()
    )
    assert (added.id, added.skill_id, added.name) == ("2", made.id, "dice")
    assert (await skills.retrieve(made.id)).latest_version_id == "2"
    await skills.create(files=SKILL)
    assert len([each async for each in skills.list(limit=1)]) == 2
    assert [each async for each in skills.list(source="anthropic")] == []
    assert (await skills.list(limit=1000)).next_page is None
    numbers = [each.id async for each in skills.versions.list(made.id, limit=1)]
    assert numbers == ["2", "1"]
    deleted = await skills.versions.delete("2", skill_id=made.id)
    assert (deleted.id, deleted.type) == ("2", "skill_version_deleted")
    assert (await skills.versions.retrieve("1", skill_id=made.id)).description == "Rolls dice."
    assert (await skills.delete(made.id)).type == "skill_deleted"
    too_many = await server.client.get("/v1/skills", params={"limit": 101})
    assert too_many.status_code == 400, "OpenAI's API has smaller pages"


@pytest.mark.requirement("AM-SKILLS")
async def test_code_reads_the_skills_of_its_container(
    serve: Serve, clients: Any, store: Store
) -> None:
    box = FakeSandbox(run_command)
    library = Skills(store, clock=lambda: 1_700_000_000.0, ids=lambda kind: kind)
    registry = containers(box, library=library)
    replies = [tool_call("python", {"code": "say 4"}), "4."]
    server = serve(local(engine(replies)), on=store, **code_interpreter_options(registry))
    client = clients(server)
    skill = await client.beta.skills.create(files=SKILL)
    reference: Json = {"type": "custom", "skill_id": skill.id, "version": "latest"}
    body: Json = {
        "model": "tiny",
        **HI,
        "tools": [{"type": "code_execution_20260521", "name": "code_execution"}],
    }
    answer = await client.beta.messages.create(**body, container={"skills": [reference]})
    assert "- dice (/mnt/skills/dice/SKILL.md): Rolls dice." in rendered_prompts(server)[0]
    assert sorted(box.boxes[0].shared_files["dice"]) == ["SKILL.md", "roll.py"]
    assert [each.skill_id for each in answer.container.skills] == [skill.id]
    for wrong, param in (
        ({**reference, "skill_id": "skill_0"}, "container.skills[0].skill_id"),
        ({**reference, "version": "9"}, "container.skills[0].version"),
        ({**reference, "type": "anthropic"}, "container.skills[0].type"),
    ):
        assert param in (await rejection(server, **body, container={"skills": [wrong]}))[1]
    body["tools"] = []
    refused = await rejection(server, **body, container={"skills": [reference]})
    assert "container.skills" in refused[1]


@pytest.mark.requirement("AM-SERVER-TOOLS")
@pytest.mark.parametrize("variant", ["tool_search_tool_bm25", "tool_search_tool_regex"])
async def test_tool_search_finds_deferred_tools(serve: Serve, clients: Any, variant: str) -> None:
    replies = [tool_call("tool_search", {"query": "weather"}), ROME, "Sunny."]
    server = serve(local(engine(replies)))
    client = clients(server)
    search: Json = {"type": f"{variant}_20251119", "name": variant}
    tools = [search, {**WEATHER, "defer_loading": True}]
    async with client.messages.stream(model="tiny", **HI, tools=tools) as stream:
        answer = await stream.get_final_message()
    call, found, use = answer.content
    assert (call.name, call.input) == (variant, {"query": "weather"})
    assert [each.tool_name for each in found.content.tool_references] == ["get_weather"]
    assert (use.name, answer.stop_reason) == ("get_weather", "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sun"}
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": blocks(answer)},
        {"role": "user", "content": [result]},
    ]
    await create(server, messages=turns, tools=tools)
    first, second, third = rendered_prompts(server)
    assert '"get_weather"' not in first and third.startswith(second)


@pytest.mark.requirement("AM-SERVER-TOOLS")
async def test_tools_of_an_mcp_server_are_called_here(
    serve: Serve, clients: Any, toys: Toys
) -> None:
    networks = (ipaddress.ip_network("127.0.0.1"),)
    mcp = McpProvider({}, SessionPool(), networks=networks)
    servers: list[Any] = [{"type": "url", "name": "desk", "url": toys.url}]
    replies = [tool_call("desk__add", {"a": 1, "b": 2}), "It is 3.", "Yes."]
    server = serve(local(engine(replies)), providers={"mcp": mcp})
    client = clients(server)
    toolset = {**TOOLSET, "default_config": {"enabled": False}, "configs": {"add": {}}}
    async with client.beta.messages.stream(
        model="tiny", **HI, tools=[toolset], mcp_servers=servers
    ) as stream:
        answer = await stream.get_final_message()
    call, result, text = answer.content
    assert (call.type, call.name, call.server_name) == ("mcp_tool_use", "add", "desk")
    assert (call.input, result.tool_use_id) == ({"a": 1, "b": 2}, call.id)
    assert not result.is_error and text.text == "It is 3."
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": blocks(answer)},
        {"role": "user", "content": "Sure?"},
    ]
    body = {"model": "tiny", "max_tokens": 99, "messages": turns}
    await client.beta.messages.create(**body, tools=[toolset], mcp_servers=servers)
    await client.beta.messages.create(**body)
    allowed = rendered_prompts(server)[0]
    toolset = {**TOOLSET, "configs": {"add": {"enabled": False}}}
    await client.beta.messages.create(**body, tools=[toolset], mcp_servers=servers)
    without_add = rendered_prompts(server).pop()
    described = '"name": "desk__{}", "description"'.format
    assert described("add") in allowed and described("delete") not in allowed
    assert described("delete") in without_add and described("add") not in without_add
    assert all('"b": 2' in prompt or '"b":2' in prompt for prompt in rendered_prompts(server)[2:])
    await mcp.close()


@pytest.mark.requirement("AM-SERVER-TOOLS")
@pytest.mark.parametrize(
    "options",
    [
        {
            "default_config": {"enabled": False},
            "configs": {"add": {}, "delete": {"defer_loading": True}},
        },
        {
            "default_config": {"enabled": False, "defer_loading": True},
            "configs": {"add": {"defer_loading": False}, "delete": {}},
        },
    ],
)
async def test_single_tools_of_an_mcp_server_are_deferred(
    serve: Serve, clients: Any, toys: Toys, options: Json
) -> None:
    networks = (ipaddress.ip_network("127.0.0.1"),)
    mcp = McpProvider({}, SessionPool(), networks=networks)
    replies = [tool_call("tool_search", {"query": "delete"}), "Found."]
    server = serve(local(engine(replies)), providers={"mcp": mcp})
    search: Json = {"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"}
    answer = await clients(server).beta.messages.create(
        model="tiny",
        **HI,
        tools=[search, {**TOOLSET, **options}],
        mcp_servers=[{"type": "url", "name": "desk", "url": toys.url}],
    )
    assert answer.content[1].content.tool_references[0].tool_name == "delete"
    first, second = rendered_prompts(server)
    assert "desk__add" in first and "desk__delete" not in first and "desk__delete" in second
    await mcp.close()


@pytest.mark.requirement("AM-SERVER-TOOLS")
async def test_results_of_tools_that_only_others_run_are_shown(serve: Serve) -> None:
    server = serve(local(engine(["Hi"])))
    url = {"url": "https://north.example"}
    page = {"type": "document", "source": {"type": "text", "data": "The longest fjord"}}
    call = {"type": "server_tool_use", "id": "s1", "name": "bash_code_execution", "input": url}
    result = {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "s1",
        "content": {"type": "bash_code_execution_result", "content": page, **url},
    }
    cut = {"type": "server_tool_use", "id": "s2", "name": "bash_code_execution", "input": url}
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": [call, result, cut]},
        *HI["messages"],
    ]
    await create(server, messages=turns)
    (prompt,) = rendered_prompts(server)
    assert prompt.count('bash_code_execution"') == 1 and "The longest fjord" in prompt


@pytest.mark.requirement("AM-SEARCH")
async def test_web_search_runs_here(serve: Serve, clients: Any) -> None:
    index = PageIndex(":memory:")
    url = "https://north.example/fjords"
    await index.add([PageDocument(url=url, title="Fjords", text="The longest one: 205 km.")])
    providers = dict.fromkeys(TYPES, WebSearchProvider(index, is_external=False))
    replies = [
        tool_call("browser__search", {"query": "longest"}),
        tool_call("browser__open", {"id": 0, "cursor": 0}),
        "It has 205 km 【1†L1】.",
        "Yes.",
    ]
    server = serve(local(engine(replies)), providers=providers)
    client = clients(server)
    tool: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    tool |= {"allowed_domains": ["north.example"], "user_location": {"type": "approximate"}}
    async with client.messages.stream(model="tiny", **HI, tools=[tool]) as stream:
        answer = await stream.get_final_message()
    search, result, text = answer.content
    assert (search.name, search.input) == ("web_search", {"query": "longest"})
    assert result.tool_use_id == search.id
    assert (result.content[0].url, result.content[0].title) == (url, "Fjords")
    assert text.citations[0].url == url and answer.usage.server_tool_use.web_search_requests == 1
    whole = await create(server, tools=[tool])
    assert whole["content"] == [{"type": "text", "text": "Yes."}]
    turns = [
        *HI["messages"],
        {"role": "assistant", "content": blocks(answer)},
        {"role": "user", "content": "Sure?"},
    ]
    await client.messages.create(model="tiny", max_tokens=99, messages=turns, tools=[tool])
    assert "205 km" in rendered_prompts(server)[-1].partition("Sure?")[0]
    await index.close()


@pytest.mark.requirement("AM-FILES")
async def test_official_client_manages_files(serve: Serve, clients: Any) -> None:
    from tests.conformance.anthropic_sdk import APIStatusError, BetaFileMetadata, NotFoundError

    server = serve(local(engine(["Hi"])))
    files = clients(server).beta.files
    text = await files.upload(file=("a.txt", b"the fox"), expires_in_seconds=7200)
    image = await files.upload(file=("b.png", b"\x89PNG"))
    assert (text.type, text.mime_type, text.size_bytes) == ("file", "text/plain", 7)
    assert (text.expires_at - text.created_at).seconds == 7200 and image.expires_at is None
    assert await files.retrieve_metadata(text.id) == text
    assert await (await files.download(text.id)).read() == b"the fox"
    assert [each.id async for each in files.list(limit=1)] == [image.id, text.id]
    assert [each.id async for each in files.list(ids=[text.id, "none"])] == [text.id]
    version = {"anthropic-version": "2023-06-01"}
    raw = await server.client.get(f"/v1/files/{text.id}", headers=version)
    BetaFileMetadata.model_validate_json(raw.content, strict=True)
    for wrong in ("1", "x"):
        form = {"files": {"file": ("a", b"")}, "data": {"expires_in_seconds": wrong}}
        refused = await server.client.post("/v1/files", headers=version, **form)
        assert refused.status_code == 400 and "expires_in_seconds" in refused.text
    source = {"type": "document", "source": {"type": "file", "file_id": text.id}}
    await create(server, messages=[{"role": "user", "content": [source]}])
    assert "the fox" in rendered_prompts(server)[-1]
    with pytest.raises(APIStatusError, match="scope_id"):
        await files.list(scope_id="session_1")
    assert (await files.delete(text.id)).type == "file_deleted"
    with pytest.raises(NotFoundError):
        await files.retrieve_metadata(text.id)


@pytest.mark.requirement("AM-FETCH")
@pytest.mark.requirement("WS-FETCH")
@pytest.mark.parametrize("searches", [False, True])
async def test_web_fetch_runs_here(serve: Serve, clients: Any, searches: bool) -> None:
    index = PageIndex(":memory:")
    url = "https://north.example/fjords"
    await index.add([PageDocument(url=url, title="Fjords", text="The longest one: 205 km.")])
    await index.add([PageDocument(url=f"{url}/2", title="More", text="None.")])
    provider = WebSearchProvider(index, is_external=False)
    replies = [
        tool_call("browser__open", {"id": f"{url}/2"}),
        tool_call("browser__open", {"id": url}),
        "It has 205 km 【1†L1】.",
        "Yes.",
    ]
    server = serve(local(engine(replies)), providers=dict.fromkeys((FETCH_TYPE, *TYPES), provider))
    client = clients(server)
    tools: list[Json] = [{"type": "web_fetch_20260318", "name": "web_fetch", "max_uses": 3}]
    tools[0] |= {"citations": {"enabled": True}, "max_content_tokens": 50}
    if searches:
        tools.append({"type": "web_search_20250305", "name": "web_search", "max_uses": 3})
    asked = {"role": "user", "content": f"Read {url}."}
    body: Json = {"model": "tiny", "max_tokens": 400, "tools": tools}
    async with client.messages.stream(**body, messages=[asked]) as stream:
        answer = await stream.get_final_message()
    *first, call, result, text = answer.content
    assert (call.name, call.input, result.tool_use_id) == ("web_fetch", {"url": url}, call.id)
    page = result.content.content
    assert (page.title, page.source.data) == ("Fjords", "The longest one: 205 km.")
    refused, kind = (
        first[1].content,
        "web_fetch_result" if searches else "web_fetch_tool_result_error",
    )
    assert refused.type == kind, "without a search, only known URLs are opened"
    assert text.citations[0].url == url and answer.usage.server_tool_use.web_fetch_requests == 2
    turns = [asked, {"role": "assistant", "content": blocks(answer)}, *HI["messages"]]
    for offered in (tools, []):
        again = await client.messages.create(**{**body, "tools": offered}, messages=turns)
        assert again.content[0].text == "Yes."
        assert "205 km" in rendered_prompts(server)[-1].rpartition("It has")[0]
    await index.close()


@pytest.mark.requirement("AM-THREADS")
@pytest.mark.parametrize("searches", [False, True])
async def test_page_that_is_opened_in_a_continued_thread_has_blocks(
    serve: Serve, searches: bool
) -> None:
    index, url = PageIndex(":memory:"), "https://north.example/fjords"
    await index.add([PageDocument(url=url, title="Fjords", text="The longest one: 205 km.")])
    provider = WebSearchProvider(index, is_external=False)
    replies = ["Hello.", tool_call("browser__open", {"id": url}), "It has 205 km."]
    server = serve(local(engine(replies)), providers=dict.fromkeys((FETCH_TYPE, *TYPES), provider))
    tools: list[Json] = [{"type": "web_fetch_20260318", "name": "web_fetch"}]
    tools += [{"type": "web_search_20260318", "name": "web_search"}] if searches else []
    tools[0]["max_content_tokens"] = 3
    first = await create(server, thread={"type": "create"}, tools=tools)
    thread = {"type": "continue", "previous_message_id": first["id"]}
    asked = [{"role": "user", "content": f"Read {url}."}]
    call, result, _ = (await create(server, thread=thread, messages=asked))["content"]
    assert (call["name"], result["content"]["url"]) == ("web_fetch", url)
    assert result["content"]["content"]["source"]["data"] == "The longest "
    await index.close()


@pytest.mark.requirement("AM-DIAGNOSTICS")
@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, None),
        ({"system": "Be kind."}, "system_changed"),
        ({"tools": [WEATHER]}, "tools_changed"),
        ({"messages": [{"role": "user", "content": "Something else"}]}, "messages_changed"),
        ({"output_config": {"effort": "low"}}, None),  # the model's prompt does not show it
        ({"diagnostics": {"previous_message_id": "msg_none"}}, "previous_message_not_found"),
        ({"diagnostics": {"previous_message_id": None}}, None),
    ],
)
async def test_cache_diagnostics_say_what_has_changed(
    serve: Serve, clients: Any, changed: Json, kind: str | None
) -> None:
    server = serve(local(engine(["Hi", "Hello"])))
    first = await create(server, thread={"type": "create"}, system="Be brief.")
    turns = [*HI["messages"], {"role": "assistant", "content": "Hi"}, *HI["messages"]]
    body: Json = {"model": "tiny", "max_tokens": 9, "messages": turns, "system": "Be brief."}
    body |= {"diagnostics": {"previous_message_id": first["id"]}, **changed}
    client = clients(server)
    async with client.beta.messages.stream(**body) as stream:
        streamed = (await stream.get_final_message()).diagnostics
    for found in (streamed, (await client.beta.messages.create(**body)).diagnostics):
        assert (None if found is None else found.cache_miss_reason.type) == kind
        if kind in ("system_changed", "tools_changed", "messages_changed"):
            assert found.cache_miss_reason.cache_missed_input_tokens > 0


def summarizing(prompt: str) -> str:
    return "The sum of it." if COMPACTION_NOTICE in prompt else "Well."


LONG: list[Json] = [
    {"role": "user", "content": "I am Ann."},
    {"role": "assistant", "content": "OLD" * 400},
    {"role": "user", "content": "And?"},
]
COMPACT: Json = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1000}}


@pytest.mark.requirement("AM-COMPACT")
async def test_long_conversation_is_compacted(serve: Serve, clients: Any) -> None:
    server = serve(local(engine(summarizing)), seal=SEAL)
    client = clients(server)
    edits: Json = {"edits": [{**COMPACT, "instructions": "Name the user."}]}
    body: Json = {"model": "tiny", "max_tokens": 400, "context_management": edits}
    async with client.beta.messages.stream(**body, messages=LONG) as stream:
        answer = await stream.get_final_message()
    block, text = answer.content
    assert (block.type, block.content) == ("compaction", "The sum of it.")
    assert (text.text, answer.stop_reason) == ("Well.", "end_turn")
    summary, message = answer.usage.iterations
    assert (summary.type, message.type) == ("compaction", "message")
    assert summary.input_tokens > message.input_tokens
    whole = await create(server, beta=True, messages=LONG, context_management=edits)
    assert [each["type"] for each in whole["content"]] == ["compaction", "text"]
    turns = [*LONG, {"role": "assistant", "content": blocks(answer)}, *HI["messages"]]
    await client.beta.messages.create(**body, messages=turns)
    asked, shrunk, *_, last = rendered_prompts(server)
    assert "Name the user." in asked and "OLD" not in shrunk
    assert "OLD" not in last and "I am Ann." in last and "The sum of it." in last
    pausing = {"edits": [{**COMPACT, "pause_after_compaction": True}]}
    paused = await create(server, beta=True, messages=LONG, context_management=pausing)
    assert [each["type"] for each in paused["content"]] == ["compaction"]
    assert paused["stop_reason"] == "compaction"


@pytest.mark.requirement("AM-COMPACT")
async def test_compaction_can_be_all_that_a_request_asks_for(serve: Serve, clients: Any) -> None:
    server = serve(local(engine(summarizing)), seal=SEAL)
    client = clients(server)
    body: Json = {"model": "tiny", "max_tokens": 400}
    asked: Json = {"type": "summarize", "instructions": "Name the user."}
    for thread in ({}, {"thread": {"type": "create"}}):
        more = {**thread, "compaction": asked}
        async with client.beta.messages.stream(**body, messages=LONG, **more) as stream:
            answer = await stream.get_final_message()
        (block,) = answer.content
        assert (block.content, answer.stop_reason) == ("The sum of it.", "compaction")
        assert [each.type for each in answer.usage.iterations] == ["compaction"]
    turns = [{"role": "user", "content": blocks(answer)}, *HI["messages"]]
    await create(server, messages=turns)
    foreign = {"type": "compaction", "content": "Ann is here.", "signature": "x"}
    failed = {"type": "compaction", "content": None}
    turns = [*LONG, {"role": "assistant", "content": [failed, foreign]}, *HI["messages"]]
    await create(server, messages=turns)
    *_, ours, theirs = rendered_prompts(server)
    assert "I am Ann." in ours and "The sum of it." in ours
    assert "Ann is here." in theirs and "OLD" not in theirs


def citable(source: Json, **fields: Any) -> Json:
    return {"type": "document", "source": source, "citations": {"enabled": True}, **fields}


TEXT = "The fox is red. The sky【7】 is blue.\n\nSnow is white."
CITABLE: list[Json] = [
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "No."}},
    citable({"type": "text", "media_type": "text/plain", "data": TEXT}, title="Colors"),
    citable({"type": "content", "content": [{"type": "text", "text": "One."}] * 2}),
    {
        "type": "search_result",
        "source": "https://north.example",
        "title": "North",
        "content": [{"type": "text", "text": "A fjord."}],
        "citations": {"enabled": True},
    },
]
NOWHERE = {"file_id": None, "document_title": None}


@pytest.mark.requirement("AM-CITATIONS")
async def test_answer_cites_documents(serve: Serve, clients: Any) -> None:
    said = "It is red【1】【6】, and more 【2-3】. Two【5, 99】 end 【99】."
    server = serve(local(engine([said, said])))
    asked = {"role": "user", "content": [*CITABLE, {"type": "text", "text": "Say."}]}
    whole = (await create(server, messages=[asked]))["content"]
    async with clients(server).messages.stream(
        model="tiny", max_tokens=400, messages=[asked]
    ) as stream:
        answer = await stream.get_final_message()
    streamed = [
        each.model_dump(exclude_unset=True, exclude={"parsed_output"}) for each in answer.content
    ]
    assert [{k: v for k, v in each.items() if v is not None} for each in streamed] == whole
    assert [each["text"] for each in whole] == [
        "It is red",
        ", and more ",
        ". Two",
        " end 【99】.",
    ]
    red, found, sky, one = [cited for each in whole for cited in each.get("citations", [])]
    colors = {"type": "char_location", "document_index": 1, "document_title": "Colors"}
    assert red | colors == red and (red["start_char_index"], red["end_char_index"]) == (0, 15)
    assert sky["cited_text"] == TEXT[sky["start_char_index"] : sky["end_char_index"]] == TEXT[16:]
    assert found["source"] == "https://north.example" and found["cited_text"] == "A fjord."
    assert one["document_index"] == 2 and (one["start_block_index"], one["end_block_index"]) == (
        1,
        2,
    )
    prompt = rendered_prompts(server)[0]
    assert "【2】The sky〖7〗 is blue." in prompt and "【6】A fjord." in prompt
    turns = [asked, {"role": "assistant", "content": whole}, *HI["messages"]]
    await create(server, messages=turns)
    assert (
        "It is red【1】【6】, and more 【2-3】. Two【5】 end 【99】."
        in rendered_prompts(server)[-1]
    )


@pytest.mark.requirement("AM-CITATIONS")
async def test_pages_and_files_are_cited(serve: Serve, clients: Any) -> None:
    pytest.importorskip("kreuzberg")
    server = serve(local(engine(lambda prompt: "Red 【1】, two 【2】, blue 【3】.")))
    client = clients(server)
    data = base64.b64encode(pdf("A fox.", "Two foxes.")).decode()
    file = await client.beta.files.upload(file=("sky.txt", b"The sky."))
    content = [
        citable({"type": "base64", "media_type": "application/pdf", "data": data}),
        citable({"type": "file", "file_id": file.id}),
        {"type": "text", "text": "Say."},
    ]
    messages = [{"role": "user", "content": content}]
    answer = await create(server, messages=messages)
    _, two, sky = [each["citations"][0] for each in answer["content"] if "citations" in each]
    assert (two["type"], two["cited_text"]) == ("page_location", "Two foxes.")
    assert (two["start_page_number"], two["end_page_number"]) == (2, 3)
    assert (sky["type"], sky["cited_text"], sky["file_id"]) == (
        "char_location",
        "The sky.",
        file.id,
    )
    count = await client.messages.count_tokens(model="tiny", messages=messages)
    assert count.input_tokens == answer["usage"]["input_tokens"]
    bad = citable({"type": "file", "file_id": "file-none"})
    status, message = await rejection(server, messages=[{"role": "user", "content": [bad]}])
    assert status == 404 and "file-none" in message


@pytest.mark.requirement("AM-CITATIONS")
@pytest.mark.parametrize("gone", ["cleared", "summarized"])
async def test_document_that_the_model_does_not_see_is_not_cited(serve: Serve, gone: str) -> None:
    """Its place in the conversation has another content, or does not exist any more."""
    server = serve(local(engine(["It is red 【1】."])))
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    texts: list[Json] = [{"type": "text", "text": "Look."}] * 2
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [citable(source)]}
    summary = {"type": "compaction", "content": "Ann is here.", "signature": "x"}
    trigger = {"type": "tool_uses", "value": 1}
    edit = {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": {**trigger, "value": 0}}
    turns: dict[str, list[Json]] = {
        "cleared": [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}],
        "summarized": [
            {"role": "user", "content": [*texts, citable(source)]},
            {"role": "assistant", "content": [summary]},
        ],
    }
    answer = await create(
        server,
        messages=[*HI["messages"], *turns[gone], *HI["messages"]],
        tools=[WEATHER],
        context_management={"edits": [edit]},
    )
    assert [each.get("citations") for each in answer["content"]] == [None]
    assert "PDF" not in rendered_prompts(server)[-1]


@pytest.mark.requirement("AM-THINKING")
async def test_system_message_sets_the_effort(serve: Serve) -> None:
    backend = ScriptedBackend([SAID])
    server = serve(backend)
    effort = {"role": "system", "content": "Hurry.", "output_config": {"effort": "low"}}
    turns = [*HI["messages"], effort, *HI["messages"]]
    await create(server, messages=turns, output_config={"effort": "high"})
    options = backend.requests[-1][1]
    assert options.reasoning is not None and options.reasoning.effort == "low"
    for bad in ({"effort": "x"}, {"format": {}}):
        turns[1] = {**effort, "output_config": bad}
        status, message = await rejection(server, messages=turns)
        assert status == 400 and "messages[1].output_config" in message


@pytest.mark.requirement("AM-FORMAT")
async def test_properties_of_the_format_may_be_optional(serve: Serve) -> None:
    city = {"type": "object", "properties": {"name": {"type": "string"}, "land": {}}}
    schema = {**city, "required": ["name"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    scripted = engine(['{"name": "Rome"}'])
    answer = await create(serve(local(scripted)), output_config=config)
    assert json.loads(answer["content"][0]["text"]) == {"name": "Rome"}
    assert scripted.requests[0][1].constraint is not None


@pytest.mark.requirement("AM-FORMAT")
async def test_official_client_parses_structured_output(serve: Serve, clients: Any) -> None:
    class City(BaseModel):
        name: str

    scripted = engine(['{"name": "Rome"}'])
    answer = await clients(serve(local(scripted))).messages.parse(
        model="tiny", **HI, output_format=City
    )
    assert answer.parsed_output == City(name="Rome")
    constraint = scripted.requests[0][1].constraint
    assert constraint is not None and constraint.needed


@pytest.mark.requirement("AM-FORMAT")
async def test_output_in_another_format_is_no_internal_error(serve: Serve) -> None:
    body = {"model": "tiny", **HI, "output_format": {"type": "json_schema", "schema": {}}}
    reply = await serve(local(engine(["Rome"]))).client.post("/v1/messages", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (502, "api_error")


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.requirement("AM-FIELDS")
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers[0].name"),
        ({"mcp_servers": [{"type": "url", "name": "a"}]}, "mcp_servers[0].url"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}]}, "mcp_server_name"),
        ({"tools": [{**WEATHER, "defer_loading": "yes"}]}, "tools[0].defer_loading"),
        (
            {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 0}]},
            "tools[0].max_uses",
        ),
        ({"tools": [{**TOOLSET, "configs": {"x": {"enabled": "no"}}}], **MCP}, "configs"),
        ({"tools": [{**TOOLSET, "default_config": {"enabled": 0}}], **MCP}, ".enabled"),
        ({"container": {"skills": ["x"]}}, "container.skills"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"service_tier": "x"}, "service_tier"),
        ({"output_config": {"effort": "x"}}, "output_config.effort"),
        ({"thread": {"type": "fork"}}, "thread.type"),
        ({"thread": {"type": "continue"}}, "thread.previous_message_id"),
        ({"thread": {"type": "continue", "previous_message_id": 1}}, "previous_message_id"),
        ({"thread": {"type": "continue", "previous_message_id": "m"}, "tools": []}, "tools"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format.schema",
        ),
        ({"context_management": {"edits": [{"type": "compact_2030"}]}}, "context_management"),
        (
            {"context_management": {"edits": [{**COMPACT, "trigger": {"type": "tool_uses"}}]}},
            "context_management.edits[0].trigger.type",
        ),
        (
            {"context_management": {"edits": [{**COMPACT, "instructions": 1}]}},
            "context_management.edits[0].instructions",
        ),
        ({"compaction": {"type": "x"}}, "compaction.type"),
        (
            {"context_management": {"edits": [{**CLEAR, "keep": {"type": "x", "value": 1}}]}},
            "context_management.edits[0].keep.type",
        ),
        (
            {"context_management": {"edits": [{**CLEAR, "trigger": {**ONE_USE, "value": "x"}}]}},
            "context_management.edits[0].trigger.value",
        ),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "name": "a b"}]}, "tools[0].name"),
        ({"tools": [{**WEATHER, "input_schema": 1}]}, "tools[0].input_schema"),
        ({"tools": [{**WEATHER, "allowed_callers": ["x"]}]}, "tools[0].allowed_callers[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [{"type": "web_fetch_20250910", "name": "x", "use_cache": False}]}, "use_cache"),
        ({"tools": [{"type": "advisor_20260301", "name": "x"}]}, "tools[0].type"),
    ],
)
async def test_fields_are_refused_by_name(serve: Serve, body: Json, path: str) -> None:
    status, message = await rejection(serve(local(engine(["Hi"]))), **body)
    assert status == 400 and path in message


@pytest.mark.requirement("AM-FIELDS")
@pytest.mark.parametrize(
    ("role", "block", "path"),
    [
        ("user", {"type": "thinking"}, ".type"),
        ("user", {"type": "text"}, ".text"),
        ("user", {"type": "text", "text": 1}, ".text"),
        ("user", {"type": "image", "source": {"type": "base64", "media_type": "x"}}, ".source"),
        ("user", {"type": "image", "source": {"type": "url"}}, ".source.url"),
        ("user", {"type": "document", "source": {"type": "x"}}, ".source.type"),
        ("user", {"type": "document", "source": {}, "citations": {"enabled": True}}, ".source"),
        ("user", citable({"type": "text", "data": "x"}, citations={"enabled": 1}), ".citations"),
        ("user", {"type": "tool_result"}, ".tool_use_id"),
        ("user", {"type": "tool_result", "tool_use_id": 1}, ".tool_use_id"),
        ("user", {"type": "tool_result", "tool_use_id": "a", "content": 1}, ".content"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "b"}, ".input"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "b", "input": 1}, ".input"),
        ("assistant", {"type": "server_tool_use", "id": "a", "input": {}}, ".name"),
        ("assistant", {"type": "web_search_tool_result", "tool_use_id": "x"}, ".tool_use_id"),
        ("system", {"type": "tool_addition", "tool": {"type": "tool_reference"}}, ".tool.name"),
        ("system", {"type": "image"}, ".type"),
    ],
)
async def test_blocks_are_refused_by_name(serve: Serve, role: str, block: Json, path: str) -> None:
    turns = [*HI["messages"], {"role": role, "content": [block]}, *HI["messages"]]
    status, message = await rejection(serve(local(engine(["Hi"]))), messages=turns)
    assert status == 400 and f"messages[1].content[0]{path}" in message


@pytest.mark.requirement("AM-ERRORS")
async def test_errors_have_anthropics_form(serve: Serve, clients: Any) -> None:
    from tests.conformance.anthropic_sdk import NotFoundError

    server = serve(local(engine(["Hi"])))
    with pytest.raises(NotFoundError) as missing:
        await clients(server).messages.create(**{**HI, "model": "none"})
    assert missing.value.type == "not_found_error" and missing.value.request_id
    assert "'none' does not exist" in str(missing.value.api_message)
    reply = await server.client.get("/v1/messages")
    assert reply.status_code == 405 and reply.json()["type"] == "error"
    plain = await server.client.post("/v1/responses", json={"model": "none", "input": "hi"})
    assert "type" not in plain.json() and "request-id" not in plain.headers


@pytest.mark.requirement("AM-ERRORS")
async def test_long_prompt_is_reported_in_the_words_that_clients_know(serve: Serve) -> None:
    scripted = engine(["Hi"])
    scripted.card = replace(scripted.card, context_size=50)
    status, message = await rejection(serve(local(scripted)), system="long " * 50)
    assert status == 400 and message.startswith("prompt is too long: ")


@pytest.mark.requirement("AM-ERRORS")
async def test_failures_of_the_run(serve: Serve, clients: Any) -> None:
    from tests.conformance.anthropic_sdk import APIStatusError

    server = serve([BackendError("The engine is gone.", code="server_is_overloaded")])
    status, _ = await rejection(server)
    assert status == 503
    *_, last = await stream_events(server)
    assert last["type"] == "error" and last["error"]["type"] == "overloaded_error"
    with pytest.raises(APIStatusError, match="The engine is gone"):
        async with clients(server).messages.stream(model="tiny", **HI) as stream:
            await stream.get_final_message()


# --- other endpoints -----------------------------------------------------------------------------


@pytest.mark.requirement("AM-COUNT")
async def test_tokens_are_counted_as_in_the_message(serve: Serve, clients: Any) -> None:
    server = serve(local(engine(["Hi"])))
    body: Json = {"messages": HI["messages"], "system": "Be brief.", "tools": [WEATHER]}
    counted = await clients(server).messages.count_tokens(model="tiny", **body)
    usage = (await create(server, **body))["usage"]
    assert counted.input_tokens == usage["input_tokens"] > 0
    assert (await rejection(server, "messages/count_tokens", system=1))[0] == 400
    assert (await rejection(server, "messages/count_tokens", model="none"))[0] == 404


@pytest.mark.requirement("AM-MODELS")
async def test_models_have_the_form_of_the_client(serve: Serve, clients: Any) -> None:
    from tests.conformance.anthropic_sdk import NotFoundError

    server = serve()
    client = clients(server)
    assert [model.id async for model in client.models.list()] == ["tiny", "gpt-5.5"]
    assert [model.id async for model in client.models.list(limit=1)] == ["tiny", "gpt-5.5"]
    assert [model.id for model in (await client.models.list(before_id="gpt-5.5")).data] == ["tiny"]
    assert (await client.models.list(lifecycle=["retired"])).data == []
    found = await client.models.retrieve("tiny")
    assert found.created_at.year == 2023 and found.max_tokens == found.max_input_tokens
    can = found.capabilities
    assert (
        can.pdf_input.supported and can.image_input.supported and not can.code_execution.supported
    )
    assert can.effort.high.supported == can.thinking.types.adaptive.supported
    assert can.context_management.compact_20260112.supported and can.server_tools is not None
    with pytest.raises(NotFoundError):
        await client.models.retrieve("none")
    assert (await server.client.get("/v1/models")).json()["object"] == "list"


# --- what the official client can send -----------------------------------------------------------

#: Parameters of the client's method that it sends as headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}


def type_names(union: Any) -> set[str]:
    """The values of ``type`` of the client's typed dictionaries in a union."""
    members = [member for member in get_args(union) if isinstance(member, type)]
    hints = [get_type_hints(member).get("type") for member in members]
    return {name for hint in hints for name in get_args(hint) if isinstance(name, str)}


@pytest.mark.requirement("AM-FIELDS")
async def test_every_field_of_the_official_client_is_honoured_or_refused(serve: Serve) -> None:
    from tests.conformance.anthropic_sdk import MessageCreateParamsBase

    known = set(MessageCreateParamsBase.__annotations__) - HEADERS
    assert known <= set(MESSAGE_FIELDS)
    server = serve(local(engine(["Hi"])))
    for name, treatment in MESSAGE_FIELDS.items():
        if treatment == "refused":
            status, message = await rejection(server, **{name: {"type": "x"}})
            assert status == 400 and name in message, name


@pytest.mark.requirement("AM-FIELDS")
async def test_every_block_and_tool_of_the_official_client_is_known_or_refused(
    serve: Serve,
) -> None:
    from tests.conformance.anthropic_sdk import BetaContentBlockParam, BetaToolUnionParam

    server = serve(local(engine(["Hi"])))
    blocks = type_names(BetaContentBlockParam)
    supported = set(get_args(get_type_hints(MessageBlock)["type"]))
    assert len(blocks) > 12 and len(blocks & supported) > 8
    for name in sorted(blocks - supported):
        for role in ("user", "assistant"):
            turns = [{"role": role, "content": [{"type": name}]}, *HI["messages"]]
            status, message = await rejection(server, messages=turns)
            assert status == 400 and "messages[0].content[0].type" in message, name
    tools = type_names(BetaToolUnionParam)
    accepted = set(get_args(get_args(get_type_hints(MessageTool)["type"])[0]))
    assert accepted - {"custom"} <= tools  # its type may be left out
    for name in sorted(tools - accepted):
        status, message = await rejection(server, tools=[{"type": name, "name": "x"}])
        assert status == 400 and "tools[0].type" in message, name
