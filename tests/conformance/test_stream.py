"""The stream: order, ids and positions of events."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError
from antiphon.stream.deltas import Annotate, Close, Delta, Open, Text
from antiphon.wire.items import FunctionCall, Message, Reasoning, UrlCitation
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import (
    TOOL,
    call,
    custom_call_deltas,
    event_types,
    finish,
    message_deltas,
    reasoning_deltas,
)
from tests.conformance.server import Ask, Json, engine, local, send_in_mode
from tests.conformance.stepped_backend import SteppedBackend

MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [
    "output_item.added",
    "content_part.added",
    "reasoning_text.delta",
    "reasoning_text.delta",
    "reasoning_text.done",
    "content_part.done",
    "output_item.done",
]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]
TURN: list[Delta] = [
    *reasoning_deltas("Let me ", "look."),
    *message_deltas("I will ", "look."),
    *call('{"city": ', '"Paris"}'),
    *call('{"city": ', '"Rome"}'),
    finish(),
]
OPENING: dict[str, Delta] = {
    "message": Open(Message(role="assistant", content=())),
    "reasoning": Open(Reasoning(summary=())),
    "function_call": Open(FunctionCall(call_id="", name="get_weather", arguments="")),
}


# --- terminal events -----------------------------------------------------------------------------


@pytest.mark.requirement("D-1", "D-3", "VN-61", "TR-12", "API-TERMINAL", "API-INCOMPLETE")
@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ([*message_deltas("Hello"), finish()], "completed", None),
        ([OPENING["message"], Text("Hel"), finish("length")], "incomplete", "max_output_tokens"),
        ([*message_deltas("Hel"), finish("content_filter")], "incomplete", "content_filter"),
        ([OPENING["message"], Text("Hel"), BackendError("!")], "failed", None),
    ],
    ids=["completed", "cut", "filtered", "failed"],
)
async def test_terminal_event_matches_the_status(
    serve: Serve, script: list[Any], status: str, reason: str | None
) -> None:
    answer = await send_in_mode("stream", serve(SteppedBackend(script)), {})
    assert event_types(answer.events)[-1] == status
    assert answer.terminal_response["status"] == status
    assert answer.terminal_response["incomplete_details"] == (reason and {"reason": reason})
    assert (answer.terminal_response["error"] is not None) == (status == "failed")
    assert (answer.terminal_response["completed_at"] is not None) == (status == "completed")


@pytest.mark.requirement("D-72", "D-73", "API-CUT-ITEM")
@pytest.mark.parametrize("kind", OPENING)
async def test_item_cut_by_a_limit_is_incomplete(serve: Serve, ask: Ask, kind: str) -> None:
    answer = await ask(serve([[OPENING[kind], Text('{"ci'), finish("length")]]))
    (item,) = answer.output
    assert item["type"] == kind
    assert item["status"] == "incomplete"
    assert answer.terminal_response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert '{"ci' in str(item)


@pytest.mark.requirement("CL-CUT-CALL")
async def test_complete_call_survives_a_limit(serve: Serve, ask: Ask) -> None:
    """Clients drop the calls of an incomplete response, and here nothing is missing."""
    answer = await ask(serve([[*call("{}"), finish("length")]]))
    assert answer.terminal_response["status"] == "completed"
    assert answer.output[0]["status"] == "completed"


@pytest.mark.requirement("D-2", "HF-11", "CL-FAILURE", "API-ERROR-EVENT")
@pytest.mark.parametrize("kind", OPENING)
async def test_failure_closes_open_items_and_sends_two_events(serve: Serve, kind: str) -> None:
    server = serve(SteppedBackend([OPENING[kind], Text("x"), BackendError("The engine broke.")]))
    answer = await send_in_mode("stream", server, {})
    types = event_types(answer.events)
    assert types[-3:] == ["output_item.done", "error", "failed"]
    assert types.count("output_item.added") == types.count("output_item.done") == 1
    assert answer.events[-3]["item"]["status"] == "incomplete"
    said_ = answer.events[-2]
    assert (said_["code"], said_["message"], said_["param"]) == (
        "server_error",
        "The engine broke. You can retry your request.",
        None,
    )
    assert said_["error"] == {
        "type": "server_error",
        "code": "server_error",
        "message": "The engine broke. You can retry your request.",
        "param": None,
    }
    assert answer.terminal_response["error"] == said_["error"]
    assert answer.terminal_response["usage"]["total_tokens"] > 0


@pytest.mark.requirement("CL-FAILURE-PLAIN")
async def test_failure_without_streaming_is_an_http_error(serve: Serve) -> None:
    answer = await send_in_mode("plain", serve(SteppedBackend([Text("x")])), {})
    assert answer.http == 502
    assert answer.error is not None and answer.error["type"] == "server_error"


@pytest.mark.requirement("D-27")
@pytest.mark.parametrize("reply", ["", "<think>Hm.</think>"], ids=["nothing", "reasoning"])
async def test_empty_reply_gives_an_empty_message(serve: Serve, ask: Ask, reply: str) -> None:
    answer = await ask(serve(local(engine([reply]))))
    *_, message = answer.output
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert (message["type"], message["role"], message["status"], message["content"]) == (
        "message",
        "assistant",
        "completed",
        [part],
    )
    assert answer.terminal_response["status"] == "completed"
    assert answer.terminal_response["usage"]["output_tokens"] == len(reply) + 1


@pytest.mark.requirement("D-80", "VN-62", "GO-17", "CL-USAGE", "API-USAGE")
@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_usage_is_null_until_the_terminal_event(serve: Serve, ask: Ask, reason: Any) -> None:
    answer = await ask(serve([[*message_deltas("Hello"), finish(reason)]]))
    assert answer.terminal_response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 9,
    }
    earlier = [e["response"]["usage"] for e in answer.events[:-1] if "response" in e]
    assert set(earlier) == ({None} if answer.events else set())


# --- item events ---------------------------------------------------------------------------------


@pytest.mark.requirement(
    "VN-80", "VN-81", "VN-84", "TR-15", "GO-16", "HF-10", "D-9", "D-10", "D-17", "D-18",
    "API-LADDER", "API-ORDER", "CL-LADDER", "CL-DELTAS", "CL-EVENT-TYPES", "VO-6",
)  # fmt: skip
async def test_item_events_come_in_order(serve: Serve) -> None:
    answer = await send_in_mode("stream", serve([TURN]), {"tools": [TOOL]})
    assert event_types(answer.events) == [
        "created", "in_progress", *REASONING, *MESSAGE, *CALL, *CALL, "completed",
    ]  # fmt: skip
    parts = [e["part"]["type"] for e in answer.events if "part" in e]
    assert parts == ["reasoning_text", "reasoning_text", "output_text", "output_text"]


@pytest.mark.requirement("D-4", "D-5", "API-INDICES")
async def test_indices_match_the_output(serve: Serve) -> None:
    answer = await send_in_mode("stream", serve([TURN]), {"tools": [TOOL]})
    for event in answer.events:
        if "item" in event:
            assert answer.output[event["output_index"]]["id"] == event["item"]["id"]
        if "content_index" in event:
            assert event["content_index"] == 0
    added = [e["output_index"] for e in answer.events if e["type"].endswith("item.added")]
    assert added == [0, 1, 2, 3]


@pytest.mark.requirement("D-6", "D-7", "D-19", "GO-15", "API-IDS", "CL-IDS")
async def test_ids_are_unique_and_stable(serve: Serve) -> None:
    server = serve([TURN])
    answer = await send_in_mode("stream", server, {"tools": [TOOL]})
    ids = [item["id"] for item in answer.output]
    assert [id.split("_")[0] for id in ids] == ["rs", "msg", "fc", "fc"]
    assert len(set(ids)) == 4
    of_items = [event for event in answer.events if "output_index" in event]
    for event in of_items:
        id = event["item"]["id"] if "item" in event else event["item_id"]
        assert id == ids[event["output_index"]]
    stored = (await server.get(f"responses/{answer.terminal_response['id']}")).json()
    assert [item["id"] for item in stored["output"]] == ids


@pytest.mark.requirement("D-8", "D-23", "API-CALL-ID")
async def test_call_ids_are_unique_and_stable(serve: Serve) -> None:
    answer = await send_in_mode("stream", serve([TURN]), {"tools": [TOOL]})
    calls = [item for item in answer.output if item["type"] == "function_call"]
    assert len({item["call_id"] for item in calls}) == 2
    assert all(item["call_id"].startswith("call_") for item in calls)
    result: dict[str, set[str]] = {}
    for event in answer.events:
        if "call_id" in event.get("item", {}):
            result.setdefault(event["item"]["id"], set()).add(event["item"]["call_id"])
    assert result == {item["id"]: {item["call_id"]} for item in calls}


@pytest.mark.requirement("API-DELTAS", "CL-WHOLE", "CL-OUTPUT")
async def test_deltas_equal_the_text_and_done_events_the_item(serve: Serve) -> None:
    answer = await send_in_mode("stream", serve([TURN]), {"tools": [TOOL]})
    prompt_texts: dict[int, str] = {}
    whole: dict[int, str] = {}
    for event in answer.events:
        at = event.get("output_index")
        if event["type"].endswith(".delta"):
            prompt_texts[at] = prompt_texts.get(at, "") + event["delta"]
        elif event["type"].endswith((".text.done", "_text.done", "_arguments.done")):
            whole[at] = event.get("text", event.get("arguments"))
    assert prompt_texts == whole == {
        0: "Let me look.", 1: "I will look.", 2: '{"city": "Paris"}', 3: '{"city": "Rome"}',
    }  # fmt: skip
    done = [e["item"] for e in answer.events if e["type"].endswith("item.done")]
    assert done == answer.output == answer.events[-1]["response"]["output"]


@pytest.mark.requirement("API-CUSTOM-CALL")
async def test_custom_call_streams_its_input(serve: Serve, ask: Ask) -> None:
    tools = [{"type": "custom", "name": "shell"}]
    answer = await ask(serve([[*custom_call_deltas("ls ", "-l"), finish()]]), tools=tools)
    assert answer.output[0]["input"] == "ls -l"
    if answer.events:
        first = event_types(answer.events).index("output_item.added")
        assert event_types(answer.events)[first:-1] == [
            "output_item.added",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.delta",
            "custom_tool_call_input.done",
            "output_item.done",
        ]


@pytest.mark.requirement("D-22")
async def test_item_opens_with_its_first_content(serve: Serve, ask_foreground: Ask) -> None:
    answer = await ask_foreground(serve([[*call("{}"), finish()]]), tools=[TOOL])
    assert [item["type"] for item in answer.output] == ["function_call"]
    if answer.events:
        assert answer.events[0]["response"]["status"] == "in_progress"


@pytest.mark.requirement("D-21", "CL-ANNOTATIONS")
async def test_items_have_only_their_own_fields(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve([TURN]), tools=[TOOL])
    assert [set(item) for item in answer.output] == [
        {"type", "id", "summary", "content", "status"},
        {"type", "id", "role", "status", "content"},
        {"type", "id", "call_id", "name", "arguments", "status"},
        {"type", "id", "call_id", "name", "arguments", "status"},
    ]
    assert answer.output[1]["content"] == [
        {"type": "output_text", "text": "I will look.", "annotations": [], "logprobs": []}
    ]


@pytest.mark.requirement("D-20", "API-ANNOTATIONS")
async def test_annotation_follows_its_text(serve: Serve) -> None:
    cited = UrlCitation(url="https://example.org", title="T", start_index=0, end_index=3)
    script = [OPENING["message"], Text("So."), Annotate(cited), Annotate(cited), Close(), finish()]
    answer = await send_in_mode("stream", serve([script]), {})
    types = event_types(answer.events)
    assert types.index("output_text.annotation.added") > types.index("output_text.delta")
    indices = [e["annotation_index"] for e in answer.events if "annotation_index" in e]
    assert indices == [0, 1]
    assert [a["url"] for a in answer.output[0]["content"][0]["annotations"]] == [cited.url] * 2


@pytest.mark.requirement("API-REFUSAL")
async def test_refusal_is_its_own_part(serve: Serve, ask: Ask) -> None:
    script = [OPENING["message"], Text("Well. "), Text("I will not.", channel="refusal"), Close()]
    answer = await ask(serve([[*script, finish()]]))
    (message,) = answer.output
    assert message["content"][1] == {"type": "refusal", "refusal": "I will not."}
    assert answer.terminal_response["status"] == "completed"
    if answer.events:
        assert [
            (e["type"], e["content_index"]) for e in answer.events if "refusal" in e["type"]
        ] == [("response.refusal.delta", 1), ("response.refusal.done", 1)]


@pytest.mark.requirement("API-REASONING-NAMES")
async def test_raw_reasoning_event_names_are_configurable(serve: Serve) -> None:
    server = serve([[*reasoning_deltas("Hm."), finish()]], reasoning_events="open_responses")
    answer = await send_in_mode("stream", server, {})
    assert event_types(answer.events)[4:6] == ["reasoning.delta", "reasoning.done"]


@pytest.mark.requirement("API-SUMMARY")
async def test_summary_is_empty_without_a_sentence(serve: Serve, ask: Ask) -> None:
    body = {"reasoning": {"effort": "low", "summary": "auto"}}
    answer = await ask(serve([[*reasoning_deltas("…"), finish()]]), **body)
    assert answer.output[0]["summary"] == []
    assert answer.terminal_response["reasoning"] == {"effort": "low", "summary": "auto"}


@pytest.mark.requirement("API-OBFUSCATION")
@pytest.mark.parametrize("padded", [False, None])
async def test_deltas_are_not_padded_by_default(serve: Serve, padded: bool | None) -> None:
    body = {"stream_options": {"include_obfuscation": padded}}
    answer = await send_in_mode("stream", serve(), body)
    assert not any("obfuscation" in event for event in answer.events)


# --- model output --------------------------------------------------------------------------------

REPLY = (
    "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
)


@pytest.mark.requirement("D-11", "D-12", "D-24", "VN-1", "HF-7")
@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
async def test_special_tokens_never_show_in_any_chunking(
    serve: Serve, ask: Ask, chunk: int
) -> None:
    answer = await ask(serve(engine([REPLY], chunk=chunk)), tools=[TOOL])
    thinking, message, tool_call = answer.output
    assert thinking["content"][0]["text"].strip() == "Hm."
    assert message["content"][0]["text"].strip() == "I look."
    assert (tool_call["name"], tool_call["arguments"]) == ("get_weather", '{"city": "Paris"}')
    assert not any("<" in e["delta"] for e in answer.events if "delta" in e)


@pytest.mark.requirement("D-26", "VN-42", "VN-63", "API-LOGPROBS")
async def test_logprobs_accompany_their_text_everywhere(serve: Serve, ask: Ask) -> None:
    server = serve(engine(["<think>\nHm.\n</think>\n\nHi!"]))
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = await ask(server, **body)
    part = answer.output[-1]["content"][0]
    assert "".join(logprob["token"] for logprob in part["logprobs"]) == part["text"] == "Hi!"
    for logprob in part["logprobs"]:
        assert bytes(logprob["bytes"]).decode() == logprob["token"]
        assert len(logprob["top_logprobs"]) == 2
        assert logprob["logprob"] <= 0
    if answer.events:
        of_part = [e for e in answer.events if e["type"].startswith("response.output_text")]
        deltas = [e["logprobs"] for e in of_part if e["type"].endswith("delta")]
        assert list(itertools.chain(*deltas)) == part["logprobs"]
        assert of_part[-1]["logprobs"] == part["logprobs"]
        parts = [e for e in answer.events if e["type"] == "response.content_part.done"]
        assert parts[-1]["part"] == part


@pytest.mark.requirement("API-LOGPROBS-ASKED")
async def test_logprobs_are_included_only_on_request(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve(engine(["Hi!"])), top_logprobs=2)
    assert answer.output[0]["content"][0]["logprobs"] == []
    assert answer.terminal_response["top_logprobs"] == 2


# --- snapshots -----------------------------------------------------------------------------------

#: Open Responses 2026-04-24: the fields of a response, possibly null.
ALWAYS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key", "prompt_cache_options",
}  # fmt: skip


#: The fields that the API allows to be null.
NULLABLE = {
    "completed_at", "incomplete_details", "previous_response_id", "instructions", "error",
    "usage", "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key",
}  # fmt: skip


@pytest.mark.requirement("API-METADATA", "D-29", "D-58", "HF-14", "API-FIELDS", "CL-CREATED")
async def test_every_snapshot_has_all_response_fields(serve: Serve, ask: Ask) -> None:
    body: Json = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "max_output_tokens": 99,
        "max_tool_calls": 3,
        "truncation": "auto",
        "safety_identifier": "someone",
        "prompt_cache_key": "some-key",
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "tools": [TOOL],
        "tool_choice": "required",
    }
    answer = await ask(serve([TURN]), **body)
    snapshots = [e["response"] for e in answer.events if "response" in e] or [
        answer.terminal_response
    ]
    for snapshot in snapshots:
        assert set(snapshot) == ALWAYS
        assert snapshot["id"] == answer.terminal_response["id"]
        for name in set(body) - {"reasoning", "text"}:
            assert snapshot[name] == body[name], name
        assert snapshot["reasoning"] == {"effort": "low", "summary": None}
        assert snapshot["text"] == {"format": {"type": "text"}, "verbosity": "low"}


@pytest.mark.requirement("API-DEFAULTS", "API-FIELDS", "D-64", "GO-2")
async def test_absent_fields_are_echoed_with_defaults(serve: Serve, ask_foreground: Ask) -> None:
    answer = await ask_foreground(serve())
    ended = answer.terminal_response
    for snapshot in [ended, *(e["response"] for e in answer.events if "response" in e)]:
        assert set(snapshot) == ALWAYS
        nulls = {name for name in ALWAYS if snapshot[name] is None}
        assert nulls <= NULLABLE
        assert (snapshot["usage"] is None) == (snapshot["status"] != "completed")
    result = {name: ended[name] for name in ALWAYS - {"id", "output", "usage"}}
    assert result == {
        "object": "response", "created_at": 1_700_000_000, "completed_at": 1_700_000_000,
        "status": "completed", "incomplete_details": None, "model": "tiny",
        "previous_response_id": None, "instructions": None, "error": None, "tools": [],
        "tool_choice": "auto", "truncation": "disabled", "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}}, "top_p": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "top_logprobs": 0, "temperature": 1.0,
        "reasoning": {"effort": None, "summary": None}, "max_output_tokens": None,
        "max_tool_calls": None, "store": True, "background": False, "service_tier": "default",
        "metadata": {}, "safety_identifier": None, "prompt_cache_key": None,
        "prompt_cache_options": {"mode": "implicit", "ttl": "30m"},
    }  # fmt: skip


@pytest.mark.requirement("D-25", "API-FRAMES", "API-SEQUENCE", "CL-CREATED-FIRST")
async def test_frames_have_names_numbers_and_done(serve: Serve) -> None:
    reply = await serve().post(stream=True)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = reply.text.split("\n")
    names = [line for line in lines if line.startswith("event: ")]
    assert names[0] == "event: response.created"
    assert names[-1] == "event: response.completed"
    assert lines[-3:] == ["data: [DONE]", "", ""]
    for size in (10, 100_000):  # a long event is sent in several pieces
        server = serve()
        queued = (await server.post(background=True, instructions="x" * size)).json()
        replay = (await server.get(f"responses/{queued['id']}", stream=True)).text
        *frames, done, end = replay.split("\n\n")
        names = [frame.split("\n")[0] for frame in frames]
        types = [json.loads(frame.split("\ndata: ")[1])["type"] for frame in frames]
        assert names == [f"event: {type}" for type in types]
        assert (types[-1], done, end) == ("response.completed", "data: [DONE]", "")
    answer = await send_in_mode("stream", serve(), {})
    assert [e["sequence_number"] for e in answer.events] == list(range(len(answer.events)))


# --- padding -------------------------------------------------------------------------------------


@pytest.mark.requirement("API-OBFUSCATION")
@pytest.mark.parametrize("background", [False, True])
async def test_padded_deltas_have_equal_sizes(serve: Serve, background: bool) -> None:
    texts = ["a", "b" * 7, "ü" * 9, " c" * 11]
    server = serve(ScriptedBackend([[*message_deltas(*texts), finish()]]))
    reply = await server.post(
        stream=True, background=background, stream_options={"include_obfuscation": True}
    )
    lines = [line[6:] for line in reply.content.split(b"\n") if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines]
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert [event["delta"] for event in deltas] == texts
    assert all("obfuscation" in event for event in deltas)
    assert not any("obfuscation" in event for event in events if event not in deltas)
    sizes = {len(line) for line, event in zip(lines, events, strict=True) if event in deltas}
    assert len(sizes) == 1
    if background:
        path = f"responses/{events[0]['response']['id']}"
        resumed = await server.get(path, stream="true", include_obfuscation="true")
        assert resumed.content.count(b'"obfuscation"') == len(texts)
        assert b"obfuscation" not in (await server.get(path, stream="true")).content


@pytest.mark.requirement("API-OBFUSCATION")
async def test_chunks_of_chats_are_padded(serve: Serve) -> None:
    server = serve(ScriptedBackend([[*message_deltas("a", "b" * 7), finish()]] * 2))
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    for pads in (True, False):
        options = {"include_obfuscation": pads, "include_usage": True}
        body = {**asked, "stream_options": options}
        reply = await server.client.post("/v1/chat/completions", json=body)
        lines = [line[6:] for line in reply.content.split(b"\n") if line.startswith(b"data: {")]
        *lines, usage = lines
        assert all(("obfuscation" in json.loads(line)) == pads for line in lines)
        assert not pads or {len(line) % 64 for line in lines} == {0}
        assert b"obfuscation" not in usage
        assert reply.content.endswith(b"data: [DONE]\n\n") and len(lines) > 2


@pytest.mark.requirement("API-OBFUSCATION")
async def test_socket_pads_deltas(serve: Serve) -> None:
    server = serve(ScriptedBackend([[*message_deltas("a", "bcd"), finish()]]))
    async with WebSocketClient(server.app) as wire:
        wire.create(input="a", stream_options={"include_obfuscation": True})
        events = await wire.events()
    deltas = [event for event in events if event["type"].endswith(".delta")]
    assert len(deltas) == 2 and all("obfuscation" in event for event in deltas)
