"""Responses upstreams: requests, responses, and one of our servers behind another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import uvicorn
from msgspec.structs import replace

from antiphon.backends.remote.factory import create_responses_backend
from antiphon.backends.remote.responses.backend import ResponsesBackend
from antiphon.backends.remote.responses.servers import FLAVOURS
from antiphon.backends.scripted_backend import Script, ScriptedBackend
from antiphon.errors import BackendError, CannotContinue, InvalidRequest, RunError, SetupError
from antiphon.inference.conversation import Conversation, Options, ResumePoint, ToolChoice
from antiphon.stream.deltas import Close, Open, Text
from antiphon.testing.backend_check import CHECKS, CONVERSATION, Check
from antiphon.testing.delta_reader import ReplyRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import batches_of, deltas_of
from antiphon.wire.extensions import Guide
from antiphon.wire.items import (
    CustomToolCall,
    CustomToolCallOutput,
    DirectCaller,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    InputText,
    McpCall,
    Message,
    OutputText,
    Program,
    ProgramCaller,
    ProgramOutput,
    Reasoning,
    ReasoningText,
)
from antiphon.wire.response import JsonObjectFormat, ReasoningConfig, TextConfig
from antiphon.wire.tools import Custom, Function, Namespace
from tests.conformance.server import Server
from tests.upstream.fakes import Answer, Fake, fake, json_answer, sse

STORY = "A boat left the harbour. It was never seen again. The sea was calm."
LOOK = Function(name="look", description="Look.", parameters={"type": "object"}, strict=True)
PATCH = Custom(name="patch")
USAGE = {"input_tokens": 25, "output_tokens": 12, "total_tokens": 37}


def text_stream(text: str = STORY, **more: Any) -> Answer:
    """A stream of this text, in as few events as possible."""
    words = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": f"{word} "}
        for word in text.split()
    ]
    last = {"object": "response", "status": "completed", "usage": USAGE, **more}
    return Answer(sse(*words, {"type": "response.completed", "response": last}, done=False))


@asynccontextmanager
async def backend_with_answers(
    *answers: Answer, owner: str = "nobody", **more: Any
) -> AsyncIterator[tuple[Fake, ResponsesBackend]]:
    listed = json_answer({"data": [{"id": "first", "owned_by": owner}]})
    async with fake(v1__models=listed, v1__responses=answers or [text_stream()]) as playing:
        backend = await create_responses_backend("tiny", playing.url, key="sk-1", **more)
        try:
            yield playing, backend
        finally:
            await backend.close()


async def read(
    backend: ResponsesBackend,
    options: Options | None = None,
    conversation: Conversation = CONVERSATION,
) -> ReplyRecord:
    reply = await backend.prepare(conversation, options or Options())
    reading = ReplyRecord()
    async with asyncio.timeout(60), aclosing(deltas_of(reply)) as deltas:
        async for delta in deltas:
            reading.add(delta)
    return reading


async def request_body(
    wish: Options | None = None,
    conversation: Conversation = CONVERSATION,
    answers: Sequence[Answer] = (),
    **more: Any,
) -> dict[str, Any]:
    async with backend_with_answers(*answers, **more) as (playing, backend):
        await read(backend, wish, conversation)
        body: dict[str, Any] = playing.bodies[-1]
    return body


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(check: Check) -> None:
    async with backend_with_answers() as (_, backend):
        await check(backend)


# --- requests -------------------------------------------------------------------------------------


async def test_plain_request_body() -> None:
    body = await request_body()
    assert body.keys() == {"model", "input", "stream", "store", "instructions"}
    assert (body["model"], body["store"], body["stream"]) == ("first", False, True)
    assert body["instructions"] == "You tell stories."
    first, second, _ = body["input"]
    assert first["content"] == [{"type": "input_text", "text": "Hello!"}]
    assert second["role"] == "assistant" and second["content"][0]["type"] == "output_text"
    assert "id" not in first


async def test_standard_options_become_fields_of_the_request() -> None:
    wish = Options(
        temperature=0.5,
        top_p=0.5,
        max_output_tokens=9,
        logprobs=2,
        cache_key="k",
        reasoning=ReasoningConfig(effort="high"),
        text=TextConfig(format=JsonObjectFormat()),
        parallel_tool_calls=False,
        tools=(LOOK, PATCH, Namespace(name="desk", tools=(LOOK,))),
        tool_choice=ToolChoice("required"),
    )
    body = await request_body(wish, model="mine", options={"body": {"service_tier": "flex"}})
    expected = {
        "model": "mine",
        "temperature": 0.5,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "prompt_cache_key": "k",
        "reasoning": {"effort": "high"},
        "text": {"format": {"type": "json_object"}},
        "parallel_tool_calls": False,
        "tool_choice": "required",
        "service_tier": "flex",
    }
    assert {key: body[key] for key in expected} == expected
    assert [tool["name"] for tool in body["tools"]] == ["look", "patch", "desk__look"]
    assert {tool["type"] for tool in body["tools"]} == {"function"}


async def test_native_server_gets_tools_unchanged() -> None:
    choice = ToolChoice("one", frozenset({("patch", None)}))
    wish = Options(tools=(PATCH, Namespace(name="desk", tools=(LOOK,))), tool_choice=choice)
    called = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"}
    body = await request_body(wish, owner="openai", answers=[text_stream("", output=[called])])
    assert [tool["type"] for tool in body["tools"]] == ["custom", "namespace"]
    assert body["tool_choice"] == {"type": "custom", "name": "patch"}
    assert body["include"] == ["reasoning.encrypted_content"]
    async with backend_with_answers() as (playing, backend):
        with pytest.raises(RunError, match="no tool was called"):
            await read(backend, Options(tools=(PATCH,), tool_choice=choice))
        named = playing.bodies[0]
    assert named["tool_choice"] == {"type": "function", "name": "patch"}


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        (Options(top_k=3), "top_k"),
        (Options(seed=3), "seed"),
        (Options(stop=("x",)), "stop"),
        (Options(presence_penalty=0.1), "presence_penalty"),
        (Options(logit_bias={1: 2.0}), "logit_bias"),
        (Options(extra={"x": 1}), "vllm_xargs.x"),
        (Options(include_stop_text=True), "include_stop_str_in_output"),
        (Options(thinking_budget=9), "thinking_token_budget"),
        (Options(template={"x": 1}), "chat_template_kwargs"),
    ],
)
async def test_nonstandard_options_are_rejected(wish: Options, param: str) -> None:
    async with backend_with_answers() as (playing, backend):
        with pytest.raises(InvalidRequest) as raised:
            await backend.prepare(CONVERSATION, wish)
        assert (raised.value.param, raised.value.code) == (param, "unsupported_parameter")
        assert not playing.bodies


async def test_guide_is_forwarded_or_instructed_and_validated() -> None:
    wish = Options(guide=Guide(syntax="lark", definition='start: "a "', path="so.grammar"))
    body = await request_body(wish, owner="antiphon", answers=[text_stream("a")])
    assert body["structured_outputs"] == {"grammar": 'start: "a "'}
    assert 'start: "a "' not in str(body.get("instructions"))
    async with backend_with_answers() as (playing, backend):
        with pytest.raises(RunError, match="form"):
            await read(backend, wish)
        assert 'start: "a "' in playing.bodies[0]["instructions"] and len(playing.bodies) == 3


async def test_antiphon_upstream_gets_all_options() -> None:
    wish = Options(
        stop=("x",), include_stop_text=True, logit_bias={7: -1.0}, thinking_budget=9, temperature=0
    )
    body = await request_body(wish, owner="antiphon")
    expected = {
        "stop": ["x"],
        "include_stop_str_in_output": True,
        "logit_bias": {"7": -1.0},
        "thinking_token_budget": 9,
        "temperature": 0,
    }
    assert {name: body[name] for name in expected} == expected
    assert not {"stop", "logit_bias"} & set(await request_body(Options(), owner="antiphon"))


async def test_fields_of_a_flavour() -> None:
    body = await request_body(Options(top_k=3, seed=7, adapter="lora"), owner="vllm")
    assert (body["top_k"], body["seed"], body["model"]) == (3, 7, "lora")
    body = await request_body(Options(repetition_penalty=1.1, template={"x": 1}), owner="llamacpp")
    assert (body["repeat_penalty"], body["chat_template_kwargs"]) == (1.1, {"x": 1})
    body = await request_body(
        Options(stop=("x",), cache_salt="s", template={"x": 1}), owner="sglang"
    )
    assert (body["stop"], body["cache_salt"], body["chat_template_kwargs"]) == (
        ["x"],
        "s",
        {"x": 1},
    )
    assert "stop" not in await request_body(Options(), owner="sglang")


CALLS = Conversation(
    items=(
        Message(id="msg_1", role="user", content=(InputText(text="go"),)),
        Reasoning(id="rs_1", content=(ReasoningText(text="Hm"),)),
        CustomToolCall(id="ctc_1", call_id="a", name="patch", input="é"),
        CustomToolCallOutput(id="ctco_1", call_id="a", output="done"),
        FunctionCall(id="fc_1", call_id="b", name="look", namespace="desk", arguments="{}"),
        FunctionCallOutput(id="fco_1", call_id="b", output="dark"),
        Message(id="msg_2", role="assistant", content=(OutputText(text="So."),)),
    )
)


async def test_items_as_functions() -> None:
    messages = (await request_body(conversation=CALLS))["input"]
    assert [item["type"] for item in messages] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert messages[2]["arguments"] == '{"input": "é"}'
    assert messages[4]["name"] == "desk__look" and "namespace" not in messages[4]
    assert [item.get("id") for item in messages] == [None, "rs_1", *[None] * 4, "msg_2"]


async def test_openai_gets_items_unchanged_and_no_reasoning() -> None:
    messages = (await request_body(conversation=CALLS, owner="openai"))["input"]
    assert [item["type"] for item in messages] == [
        "message",  # and no thinking, which it takes sealed only
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]


@pytest.mark.parametrize("owner", ["nobody", "openai"])
@pytest.mark.parametrize("there", [False, True])
async def test_local_tool_items_become_function_calls(owner: str, there: bool) -> None:
    image = ImageGenerationCall(id="ig_1", result="iVBOR", revised_prompt="a cat", size="2x3")
    more: dict[str, Any] = {"options": {"tools": ["image_generation"]}} if there else {}
    messages = (await request_body(conversation=Conversation((image,)), owner=owner, **more))[
        "input"
    ]
    if there:
        assert messages[0]["type"] == "image_generation_call" and messages[0]["result"] == "iVBOR"
        return
    call, output = messages
    assert (call["type"], call["name"]) == ("function_call", "image_generation")
    assert call["arguments"] == '{"prompt": "a cat"}' and call["call_id"] == output["call_id"]
    assert output["output"] == '{"status": "completed", "size": "2x3"}'


async def test_extension_of_file_search_is_left_out() -> None:
    files = ({"file_id": "file-1", "filename": "a.md"},)
    call = FileSearchCall(id="fs_1", queries=("a",), passage_files=files)
    more: dict[str, Any] = {"options": {"tools": ["file_search"]}}
    conversation = Conversation((call,))
    body = await request_body(conversation=conversation, owner="openai", **more)
    assert body["input"] == [
        {
            "type": "file_search_call",
            "queries": ["a"],
            "status": "completed",
            "results": None,
        }
    ]


# --- responses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
async def test_local_programs_become_calls(there: bool) -> None:
    more: dict[str, Any] = {"options": {"tools": ["programmatic_tool_calling"]}} if there else {}
    caller = ProgramCaller("p")
    program = Program(id="prg_1", call_id="p", code="text(1)", fingerprint="f")
    items = (
        Message(id="m", role="user", content=(InputText(text="hi"),)),
        program,
        FunctionCall(id="fc_1", call_id="c", name="look", arguments="{}", caller=caller),
        McpCall(id="mcp_1", server_label="s", name="f", arguments="{}", caller=caller),
        FunctionCallOutput(id="fco_1", call_id="c", output="seen", caller=caller),
        ProgramOutput(id="prgo_1", call_id="p", result="1"),
        FunctionCall(id="fc_2", call_id="d", name="look", arguments="{}", caller=DirectCaller()),
        FunctionCallOutput(id="fco_2", call_id="d", output="seen"),
        replace(program, id="prg_2", call_id="q"),
    )
    messages = (await request_body(conversation=Conversation(items), owner="openai", **more))[
        "input"
    ]
    types = [item["type"] for item in messages]
    if there:
        assert types == [str(item.__struct_config__.tag) for item in items]
        return
    assert types == [
        "message",
        "custom_tool_call",
        "custom_tool_call_output",
        "function_call",
        "function_call_output",
    ]
    assert "caller" not in str(messages)


async def test_too_long_conversation_is_truncated_if_allowed() -> None:
    too_long = json_answer({"error": {"code": "context_length_exceeded", "message": "…"}}, 400)
    items = tuple(
        Message(id=f"msg_{n}", role="user", content=(InputText(text=f"{n} " + "word " * 200),))
        for n in range(6)
    )
    async with backend_with_answers(too_long, text_stream()) as (playing, backend):
        reply = await backend.prepare(Conversation(items=items), Options(truncate=True))
        async with asyncio.timeout(60):
            async for _ in batches_of(reply):
                pass
        first, second = (len(body["input"]) for body in playing.bodies)
        assert first == 6 > second and len(reply.dropped_ids) == 6 - second
    async with backend_with_answers(too_long) as (_, backend):
        with pytest.raises(BackendError) as raised:
            await read(backend)
        assert raised.value.code == "context_length_exceeded"
        reply = await backend.prepare(CONVERSATION, Options())
        assert reply.resume(ResumePoint((), ())) is reply
        with pytest.raises(CannotContinue):
            reply.resume(ResumePoint((1,), (2,)))


async def test_unenforced_format_is_retried() -> None:
    wish = Options(text=TextConfig(format=JsonObjectFormat()))
    async with backend_with_answers(text_stream("no"), text_stream('{"a":1}')) as (
        playing,
        backend,
    ):
        assert (await read(backend, wish)).text == '{"a":1}'
        assert len(playing.bodies) == 2
    async with backend_with_answers(text_stream("no"), text_stream('{"a":1}'), owner="vllm") as (
        playing,
        backend,
    ):
        assert (await read(backend, wish)).text == '{"a":1}'
        assert len(playing.bodies) == 2


async def test_output_before_an_error_is_delivered() -> None:
    events = sse(
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "So far."},
        {"type": "error", "code": "server_error", "message": "overloaded"},
    )
    async with backend_with_answers(Answer([b"".join(events)])) as (_, backend):
        whole = Server(backend, MemoryStore())
        streamed = (await whole.post(stream=True)).text
        assert '"delta":"So far."' in streamed and "event: response.failed" in streamed
        await whole.close()


async def test_settings_may_say_that_the_model_does_not_hear() -> None:
    async with backend_with_answers() as (_, backend):
        assert backend.capabilities.hears
    async with backend_with_answers(options={"hears": False}) as (_, deaf):
        assert not deaf.capabilities.hears


async def test_unknown_flavour_is_an_error() -> None:
    async with fake() as playing:
        with pytest.raises(SetupError, match="there is no 'vlm'"):
            await create_responses_backend(
                "tiny", playing.url, model="m", options={"flavour": "vlm"}
            )
        with pytest.raises(SetupError, match="set upstream_model"):
            await create_responses_backend("tiny", playing.url)
    assert "plain" in FLAVOURS


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", None), ("required", "required"), ({"type": "web_search"}, {"type": "web_search"})],
)
async def test_hosted_tools_of_the_upstream(choice: Any, expected: Any) -> None:
    action = {"type": "search", "query": "boats"}
    stream = sse(
        {"type": "response.output_item.added", "output_index": 0, "item": SEARCH},
        {"type": "response.web_search_call.searching", "output_index": 0},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**SEARCH, "action": action},
        },
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Found."},
        {"type": "response.completed", "response": {"status": "completed", "usage": USAGE}},
    )
    async with backend_with_answers(Answer(stream), options={"tools": ["web_search"]}) as (
        playing,
        backend,
    ):
        whole = Server(backend, MemoryStore())
        tools = [{"type": "web_search"}, {"type": "function", "name": "look"}, {"type": "shell"}]
        reply = await whole.post(tools=tools, tool_choice=choice)
        assert [item["type"] for item in reply.json()["output"]] == ["web_search_call", "message"]
        assert reply.json()["output"][0]["action"] == action
        assert reply.headers["x-antiphon-ignored-tools"] == "shell"
        body = playing.bodies[-1]
        assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
        assert body.get("tool_choice") == expected
        await whole.close()


# --- one of our servers behind another ------------------------------------------------------------


@asynccontextmanager
async def ours(*scripts: Script) -> AsyncIterator[tuple[str, ScriptedBackend]]:
    """One of our servers with a scripted model, on a port."""
    backend = ScriptedBackend(scripts)
    whole = Server(backend, MemoryStore())
    config = uvicorn.Config(
        whole.app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", backend
    finally:
        server.should_exit = True
        await task
        await whole.close()


@asynccontextmanager
async def chained(*scripts: Script) -> AsyncIterator[tuple[Server, ScriptedBackend]]:
    async with ours(*scripts) as (url, scripted):
        backend = await create_responses_backend("tiny", url, options={"flavour": "antiphon"})
        front = Server(backend, MemoryStore())
        try:
            yield front, scripted
        finally:
            await front.close()
            await backend.close()


def thinking_then(*shells: Any) -> Sequence[Any]:
    deltas: list[Any] = [Open(Reasoning()), Text("Hm."), Close()]
    for shell, text in shells:
        deltas += [Open(shell), Text(text), Close()]
    return deltas


async def test_tool_loop_through_two_servers() -> None:
    call = FunctionCall(call_id="call_1", name="look", arguments="")
    patch = CustomToolCall(call_id="call_2", name="patch", input="")
    script = thinking_then((call, '{"at":1}'), (patch, "*** é"))
    async with chained(script, "All done.") as (front, scripted):
        tools = [
            {"type": "function", "name": "look", "parameters": {"type": "object"}},
            {"type": "custom", "name": "patch"},
        ]
        first = (await front.post(input="go", tools=tools)).json()
        shown = [
            (item["type"], item.get("arguments", item.get("input"))) for item in first["output"]
        ]
        assert shown == [
            ("reasoning", None),
            ("function_call", '{"at":1}'),
            ("custom_tool_call", "*** é"),
        ]
        assert first["output"][0]["content"][0]["text"] == "Hm."
        results = [
            {"type": "function_call_output", "call_id": "call_1", "output": "sea"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"},
        ]
        second = await front.post(input=results, tools=tools, previous_response_id=first["id"])
        assert second.json()["output"][0]["content"][0]["text"] == "All done."
        conversation, _ = scripted.requests[-1]
        assert [type(item).__name__ for item in conversation.items] == [
            "Message",
            "Reasoning",
            "FunctionCall",
            "CustomToolCall",
            "FunctionCallOutput",
            "CustomToolCallOutput",
        ]


@pytest.mark.parametrize("mode", ["stream", "background"])
async def test_stream_and_background_over_any_upstream(mode: str) -> None:
    async with chained(STORY) as (front, _):
        reply = await front.post(**{mode: True})
        assert reply.status_code == 200
        if mode == "stream":
            assert "event: response.completed" in reply.text
            return
        path = f"responses/{reply.json()['id']}"
        async with asyncio.timeout(60):
            while (found := (await front.get(path)).json())["status"] != "completed":
                await asyncio.sleep(0)
        assert found["output"][0]["content"][0]["text"] == STORY


@pytest.mark.parametrize(
    ("owner", "path", "answer"),
    [
        ("antiphon", "/v1/responses/input_tokens", {"input_tokens": 100}),
        ("vllm", "/tokenize", {"count": 100}),
        ("llamacpp", "/tokenize", {"tokens": [1] * 100}),
    ],
)
async def test_upstream_counts_tokens_near_the_context_size(
    owner: str, path: str, answer: dict[str, Any]
) -> None:
    text = "word " * 20
    talk = Conversation(items=(Message(role="user", content=(InputText(text=text),)),))
    async with backend_with_answers(owner=owner, context_size=100) as (playing, backend):
        playing.routes[path] = [json_answer(answer)]
        with pytest.raises(InvalidRequest) as refused:
            await backend.prepare(talk, Options())
        assert refused.value.code == "context_length_exceeded"
        assert playing.asked[-1][0] == path and text in str(playing.bodies[-1])
        assert "stream" not in playing.bodies[-1]


@pytest.mark.requirement("UP-CONTEXT")
async def test_certainly_too_long_conversation_is_never_sent() -> None:
    talk = Conversation(items=(Message(role="user", content=(InputText(text="word " * 201),)),))
    async with backend_with_answers(context_size=100) as (playing, backend):
        with pytest.raises(InvalidRequest) as refused:
            await backend.prepare(talk, Options())
        assert refused.value.code == "context_length_exceeded"
        assert playing.bodies == []
