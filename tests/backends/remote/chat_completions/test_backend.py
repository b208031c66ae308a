"""Chat Completions upstreams: requests, responses, and servers of every flavour behind a whole
server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.remote.chat_completions.backend import ChatCompletionsBackend
from antiphon.backends.remote.chat_completions.servers import FLAVOURS
from antiphon.backends.remote.factory import create_chat_backend
from antiphon.errors import BackendError, CannotContinue, InvalidRequest, RunError, SetupError
from antiphon.inference.conversation import Conversation, Options, ResumePoint, ToolChoice
from antiphon.stream.deltas import Finish, Text
from antiphon.testing.backend_check import CHECKS, CONVERSATION, Check
from antiphon.testing.delta_reader import ReplyRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import batches_of, deltas_of
from antiphon.wire.extensions import Guide
from antiphon.wire.items import InputText, Message
from antiphon.wire.response import JsonObjectFormat, JsonSchemaFormat, ReasoningConfig, TextConfig
from antiphon.wire.tools import Custom, Function, GrammarFormat, Namespace
from tests.backends.upstreams import STREAMS, VLLM
from tests.conformance.server import Server
from tests.upstream.fakes import Answer, Fake, chunks, fake, json_answer, sse

LOOK = Function(name="look", description="Look.", parameters={"type": "object"}, strict=True)
PATCH = Custom(name="patch")


def models(owner: str = "nobody", *ids: str) -> Answer:
    listed = [{"id": id, "object": "model", "owned_by": owner} for id in ids or ("first", "second")]
    return json_answer({"object": "list", "data": listed})


@asynccontextmanager
async def backend_with_answers(
    *answers: Answer | list[bytes], owner: str = "nobody", **more: Any
) -> AsyncIterator[tuple[Fake, ChatCompletionsBackend]]:
    """A fake upstream with these answers, and a backend for it."""
    played = [each if isinstance(each, Answer) else Answer(each) for each in answers]
    async with fake(v1__models=models(owner), v1__chat__completions=played) as playing:
        backend = await create_chat_backend("tiny", playing.url, key="sk-1", **more)
        try:
            yield playing, backend
        finally:
            await backend.close()


async def read(
    backend: ChatCompletionsBackend,
    options: Options | None = None,
    conversation: Conversation = CONVERSATION,
) -> ReplyRecord:
    reply = await backend.prepare(conversation, options or Options())
    reading = ReplyRecord()
    async with asyncio.timeout(60), aclosing(deltas_of(reply)) as deltas:
        async for delta in deltas:
            reading.add(delta)
    return reading


async def request_body(wish: Options, **more: Any) -> dict[str, Any]:
    """The request body for these options."""
    async with backend_with_answers(chunks({"content": "a"}), **more) as (playing, backend):
        with suppress(RunError):  # an answer where a call was asked for
            await read(backend, wish)
        body: dict[str, Any] = playing.bodies[0]
    return body


# --- requests -------------------------------------------------------------------------------------


async def test_plain_request_body() -> None:
    body = await request_body(Options())
    assert body == {
        "model": "first",
        "messages": [
            {"role": "system", "content": "You tell stories."},
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": "Hello. What shall I tell you?"},
            {"role": "user", "content": "Tell me a story of three sentences."},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_standard_options_become_fields_of_the_request() -> None:
    body = await request_body(
        Options(
            temperature=0,
            top_p=0.5,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            seed=7,
            stop=("x",),
            logit_bias={5: -100.0},
            logprobs=2,
            max_output_tokens=9,
            reasoning=ReasoningConfig(effort="high"),
        ),
        model="mine",
        options={"body": {"provider": {"sort": "price"}}, "headers": {"x-title": "t"}},
    )
    expected = {
        "model": "mine",
        "temperature": 0,
        "top_p": 0.5,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 7,
        "stop": ["x"],
        "logit_bias": {"5": -100.0},
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 9,
        "reasoning_effort": "high",
        "provider": {"sort": "price"},
    }
    assert {key: body[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("flavour", "fields"),
    [
        ("openai", {"max_completion_tokens": 9, "reasoning_effort": "none"}),
        ("openrouter", {"max_tokens": 9, "reasoning": {"effort": "none"}}),
        ("deepseek", {"max_tokens": 9, "thinking": {"type": "disabled"}}),
        (
            "vllm",
            {
                "reasoning_effort": "none",
                "chat_template_kwargs": {"enable_thinking": False, "a": 1},
            },
        ),
    ],
)
async def test_reasoning_effort_by_flavour(flavour: str, fields: dict[str, Any]) -> None:
    effort = Options(max_output_tokens=9, reasoning=ReasoningConfig(effort="none"))
    template = {"a": 1} if flavour == "vllm" else {}
    body = await request_body(effort, options={"flavour": flavour}, template=template)
    assert {key: body[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("owner", "salt", "count"), [("vllm", "1f", 16), ("sglang", "1f", 16), ("llamacpp", None, 0)]
)
async def test_cache_scope_is_sent_or_cached_tokens_are_hidden(
    owner: str, salt: str | None, count: int
) -> None:
    async with backend_with_answers(VLLM, VLLM, owner=owner) as (playing, backend):
        scoped = await read(backend, Options(cache_scope="1f"))
        shared = await read(backend, Options())
    assert [body.get("cache_salt") for body in playing.bodies] == [salt, None]
    counts = [each.finish.usage.input_tokens_details.cached_tokens for each in (scoped, shared)]
    assert counts == [count, 16]


@pytest.mark.requirement("API-OFFERED-CALLS")
@pytest.mark.parametrize("owner", ["nobody", "vllm"])
@pytest.mark.parametrize(
    "wish",
    [Options(tools=(LOOK,), tool_choice=ToolChoice("none")), Options(tools=(PATCH,)), Options()],
)
async def test_upstream_call_that_was_not_offered_is_text(wish: Options, owner: str) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    async with backend_with_answers(chunks({"tool_calls": [call]}), owner=owner) as (_, backend):
        reading = await read(backend, wish)
    assert [type(each.item) for each in reading.items] == [Message]
    assert reading.text == "look({})"


async def test_fields_of_a_flavour() -> None:
    options = Options(
        top_k=3,
        min_p=0.1,
        repetition_penalty=1.1,
        ignore_eos=True,
        priority=2,
        cache_salt="s",
        adapter="lora",
        template={"x": 1},
        thinking_budget=50,
        include_stop_text=True,
        guide=Guide(syntax="regex", definition="a+", path="structured_outputs.regex"),
        extra={"mm_processor_kwargs": {"k": 1}, "x": 2},
    )
    body = await request_body(options, owner="vllm", adapters={"lora": "lora-v2"})
    expected = {
        "model": "lora-v2",
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "priority": 2,
        "cache_salt": "s",
        "chat_template_kwargs": {"x": 1},
        "thinking_token_budget": 50,
        "include_stop_str_in_output": True,
        "structured_outputs": {"regex": "a+"},
        "mm_processor_kwargs": {"k": 1},
        "vllm_xargs": {"x": 2},
    }
    assert {key: body[key] for key in expected} == expected
    assert (await request_body(Options(repetition_penalty=1.1), owner="llamacpp"))[
        "repeat_penalty"
    ] == 1.1
    sglang = await request_body(
        replace(options, extra={}, thinking_budget=None), owner="sglang", adapters={"lora": "poet"}
    )
    expected = {"priority": -2, "lora_path": "poet", "no_stop_trim": True, "regex": "a+"}
    assert {key: sglang[key] for key in expected} == expected


async def test_seed_that_sglang_ignores_is_rejected() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await request_body(Options(seed=7), owner="sglang")
    assert raised.value.param == "seed"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (Options(top_k=3), "top_k"),
        (Options(min_p=0.1), "min_p"),
        (Options(repetition_penalty=1.1), "repetition_penalty"),
        (Options(ignore_eos=True), "ignore_eos"),
        (Options(priority=1), "priority"),
        (Options(thinking_budget=9), "thinking_token_budget"),
        (Options(template={"x": 1}), "chat_template_kwargs"),
        (Options(extra={"x": 1}), "vllm_xargs.x"),
        (Options(extra={"mm_processor_kwargs": {"k": 1}}), "mm_processor_kwargs"),
        (Options(include_stop_text=True), "include_stop_str_in_output"),
        (Options(adapter="poet"), "model"),
    ],
)
async def test_options_a_server_would_ignore_are_rejected(options: Options, param: str) -> None:
    async with backend_with_answers(chunks()) as (playing, backend):
        with pytest.raises(InvalidRequest) as raised:
            await backend.prepare(CONVERSATION, options)
        assert (raised.value.param, raised.value.code) == (param, "unsupported_parameter")
        assert not playing.bodies


@pytest.mark.parametrize(
    ("owner", "effort"),
    [
        ("someone", {}),
        ("sglang", {"reasoning_effort": "medium"}),
        ("z-ai", {"thinking": {"type": "enabled"}}),
    ],
)
async def test_budget_that_is_a_hint_becomes_an_effort_or_nothing(
    owner: str, effort: dict[str, Any]
) -> None:
    options = Options(top_k=3, thinking_budget=9_000, hints=("top_k", "thinking_budget"))
    body = await request_body(options, owner=owner)
    names = {"reasoning_effort", "thinking", "thinking_token_budget"}
    assert {name: body[name] for name in names & body.keys()} == effort
    assert ("top_k" in body) == (owner == "sglang")


async def test_all_kinds_of_tools_become_functions() -> None:
    tools = (LOOK, PATCH, Namespace(name="desk", tools=(LOOK,)))
    body = await request_body(Options(tools=tools, parallel_tool_calls=False))
    functions = [tool["function"] for tool in body["tools"]]
    assert [f["name"] for f in functions] == ["look", "patch", "desk__look"]
    assert functions[0] == {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert functions[1]["parameters"]["required"] == ["input"] and "strict" not in functions[1]
    assert "tool_choice" not in body and body["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (ToolChoice("auto"), None, ["look", "patch"]),
        (ToolChoice("required"), "required", ["look", "patch"]),
        (ToolChoice("none"), None, None),
        (
            ToolChoice("one", frozenset({("patch", None)})),
            {"type": "function", "function": {"name": "patch"}},
            ["patch"],
        ),
        (
            ToolChoice("required", frozenset({("look", None)})),
            "required",
            ["look"],
        ),
        (
            ToolChoice("auto", frozenset({("look", None)})),
            None,
            ["look"],
        ),
    ],
)
async def test_tool_choice_selects_the_tools_of_the_request(
    choice: Any, expected: Any, names: list[str] | None
) -> None:
    body = await request_body(Options(tools=(LOOK, PATCH), tool_choice=choice))
    assert body.get("tool_choice") == expected
    assert (names and [t["function"]["name"] for t in body["tools"]]) == names


async def test_text_format_becomes_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = JsonSchemaFormat(name="n", schema=schema, description="d", strict=True)
    body = await request_body(Options(text=TextConfig(format=form)), owner="vllm")
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True, "description": "d"},
    }
    body = await request_body(Options(text=TextConfig(format=JsonObjectFormat())), owner="vllm")
    assert body["response_format"] == {"type": "json_object"}
    assert "response_format" not in await request_body(Options())


FORM = JsonSchemaFormat(
    name="n", schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
)


async def test_unenforced_format_is_retried() -> None:
    wrong, right = (chunks({"content": text}) for text in ("Sure: a is one.", 'Well: {"a": 1}'))
    wish = Options(text=TextConfig(format=FORM))
    async with backend_with_answers(wrong, right) as (playing, backend):
        reply = await read(backend, wish)
        assert reply.text == '{"a": 1}'
        first, second = playing.bodies
        assert first["response_format"]["type"] == "json_schema"
        assert [m["content"] for m in second["messages"][-2:-1]] == ["Sure: a is one."]
    async with backend_with_answers(wrong, options={"flavour": "deepseek"}) as (playing, backend):
        with pytest.raises(RunError, match="form"):
            await read(backend, wish)
        assert len(playing.bodies) == 3
        assert playing.bodies[0]["response_format"] == {"type": "json_object"}
        assert '"integer"' in playing.bodies[0]["messages"][0]["content"]


async def test_enforced_format_is_validated_while_it_streams() -> None:
    wrong, right = (chunks({"content": text}) for text in ("Sure: a is one.", 'Well: {"a": 1}'))
    wish = Options(text=TextConfig(format=FORM))
    async with backend_with_answers(wrong, right, owner="vllm") as (playing, backend):
        assert (await read(backend, wish)).text == '{"a": 1}' and len(playing.bodies) == 2
    mail = Guide(syntax="regex", definition="[a-z]+@[a-z]+\\n", path="")
    async with backend_with_answers(chunks({"content": "ada@home"}), owner="vllm") as (
        playing,
        backend,
    ):
        # an upstream that does not report stop strings
        assert (await read(backend, Options(guide=mail, stop=("\n",)))).text == "ada@home"
        with pytest.raises(RunError, match="grammar"):
            await read(backend, Options(guide=mail))


CALL = chunks(
    {"content": "I look."},
    {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}]},
    reason="tool_calls",
)


async def test_format_applies_to_the_answer_but_not_to_text_before_a_call() -> None:
    wrong, right = (chunks({"content": text}) for text in ("It is dark.", '{"a": 1}'))
    wish = Options(text=TextConfig(format=FORM), tools=(LOOK,))
    async with backend_with_answers(CALL, wrong, right) as (playing, backend):
        called = await read(backend, wish)
        assert [each.item.__struct_config__.tag for each in called.items] == [
            "message",
            "function_call",
        ]
        assert called.items[0].text == {"text": "I look."} and len(playing.bodies) == 1
        assert (await read(backend, wish)).text == '{"a": 1}'
        assert len(playing.bodies) == 3


def calling(*calls: tuple[str, str]) -> list[bytes]:
    messages = [
        {"index": at, "id": f"c{at}", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return chunks(*({"tool_calls": [each]} for each in messages), reason="tool_calls")


WEATHER = Function(
    name="weather",
    parameters={"type": "object", "properties": {"city": {"enum": ["Oslo"]}}},
    strict=True,
)
SHELL = Custom(name="sh", format=GrammarFormat(syntax="regex", definition="ls [a-z]{2}"))


@pytest.mark.requirement("API-STRICT", "API-CUSTOM-GRAMMAR")
@pytest.mark.parametrize(
    ("tool", "wrong", "right", "why"),
    [
        (WEATHER, ("weather", '{"town": "Oslo"}'), ("weather", '{"city": "Oslo"}'), "'town'"),
        (SHELL, ("sh", '{"input": "rm -r"}'), ("sh", '{"input": "ls ab"}'), "'sh'"),
    ],
)
async def test_invalid_strict_calls_are_retried(
    tool: Any, wrong: tuple[str, str], right: tuple[str, str], why: str
) -> None:
    wish = Options(tools=(tool, LOOK))
    async with backend_with_answers(calling(("look", "{}"), wrong), calling(right)) as (
        playing,
        backend,
    ):
        reply = await read(backend, wish)
        assert [each.item.name for each in reply.items] == [tool.name]
        assert "rm" not in str(reply.items) and "town" not in str(reply.items)
        messages = playing.bodies[1]["messages"][-3:]
        assert [message["role"] for message in messages] == ["assistant", "tool", "tool"]
        assert len(messages[0]["tool_calls"]) == 2
        assert "Not run" in messages[1]["content"] and why in messages[2]["content"]
    async with backend_with_answers(calling(wrong)) as (playing, backend):
        with pytest.raises(RunError, match="form"):
            await read(backend, wish)
        assert len(playing.bodies) == 3
    async with backend_with_answers(calling(wrong), calling(right), owner="openai") as (
        playing,
        backend,
    ):
        assert [each.item.name for each in (await read(backend, wish)).items] == [tool.name]


@pytest.mark.requirement("API-TOOL-CHOICE")
async def test_missing_required_call_is_retried() -> None:
    wish = Options(
        tools=(LOOK, WEATHER), tool_choice=ToolChoice("one", frozenset({("look", None)}))
    )
    right = calling(("look", "{}"))
    for wrong in (("weather", '{"city": "Oslo"}'), ("nowhere", "{}")):
        async with backend_with_answers(chunks({"content": "No."}), calling(wrong), right) as (
            playing,
            backend,
        ):
            reply = await read(backend, wish)
            assert [each.item.name for each in reply.items] == ["look"]
            assert playing.bodies[1]["messages"][-2]["content"] == "No."
            assert "may not be called" in playing.bodies[2]["messages"][-1]["content"]


@pytest.mark.requirement("API-PARALLEL")
async def test_only_one_call_passes_without_parallel_tool_calls() -> None:
    both = calling(("look", "{}"), ("look", "{}"))
    tool = Function(name="look", parameters={})
    for parallel in (True, False):
        async with backend_with_answers(both) as (_, backend):
            reply = await read(backend, Options(tools=(tool,), parallel_tool_calls=parallel))
        assert len(reply.items) == (2 if parallel else 1)
        assert reply.finish is not None and reply.finish.reason == "stop"


async def test_stopped_reply_closes_the_connection_and_estimates_its_usage() -> None:
    never = asyncio.Event()
    first, *rest = chunks({"content": "word " * 8}, {"content": "b"})
    async with (
        backend_with_answers(Answer([first, never, *rest])) as (_, backend),
        asyncio.timeout(60),
    ):
        reply = await backend.prepare(CONVERSATION, Options())
        deltas = []
        async for delta in deltas_of(reply):
            deltas.append(delta)
            reply.stop()
    end = deltas[-1]
    assert isinstance(end, Finish) and end.reason == "length"
    assert end.usage.input_tokens > 0 and end.usage.output_tokens >= 10


@pytest.mark.requirement("API-PARALLEL")
async def test_calls_without_end_are_cut_off_behind_the_first() -> None:
    never = asyncio.Event()
    first, second, *rest = calling(("look", "{}"), ("look", '{"text": "' + "x" * 10_000))
    tool = Function(name="look", parameters={})
    async with (
        backend_with_answers(Answer([first, second, never, *rest])) as (_, backend),
        asyncio.timeout(60),
    ):
        reply = await read(backend, Options(tools=(tool,), parallel_tool_calls=False))
    assert len(reply.items) == 1
    assert reply.finish is not None and reply.finish.reason == "stop"


async def test_answer_beside_strict_tools_streams() -> None:
    request_received = asyncio.Event()
    first, *rest = chunks({"content": "a"}, {"content": "b"})
    texts = []
    async with backend_with_answers(Answer([first, request_received, *rest])) as (_, backend):
        reply = await backend.prepare(CONVERSATION, Options(tools=(WEATHER,)))
        async with asyncio.timeout(60), aclosing(deltas_of(reply)) as deltas:
            async for delta in deltas:
                if isinstance(delta, Text):
                    texts.append(delta.text)
                    request_received.set()
    assert texts == ["a", "b"]


async def test_uncheckable_grammar_is_rejected() -> None:
    bad = Custom(name="sh", format=GrammarFormat(syntax="lark", definition="start: nope"))
    async with backend_with_answers(chunks({"content": "a"})) as (playing, backend):
        with pytest.raises(InvalidRequest) as raised:
            await backend.prepare(CONVERSATION, Options(tools=(bad,)))
        assert raised.value.param == "tools[0].format.definition" and not playing.bodies


async def test_refusal_needs_no_format() -> None:
    refused = chunks({"refusal": "I will not."})
    async with backend_with_answers(refused) as (playing, backend):
        reply = await read(backend, Options(text=TextConfig(format=FORM)))
        assert reply.items[-1].text == {"refusal": "I will not."} and len(playing.bodies) == 1


async def test_unsupported_guide_is_instructed_and_validated() -> None:
    guide = Guide(syntax="regex", definition="[0-9]{3}", path="structured_outputs.regex")
    wrong, right = (chunks({"content": text}) for text in ("Twelve.", "012"))
    for owner in ("nobody", "llamacpp"):
        async with backend_with_answers(wrong, right, owner=owner) as (playing, backend):
            assert (await read(backend, Options(guide=guide))).text == "012"
            assert "[0-9]{3}" in playing.bodies[0]["messages"][0]["content"]


GUIDES = {
    "ebnf": 'root ::= "Hi"',
    "structural_tag": '{"format": {"type": "const_string", "value": "Hi"}}',
}


@pytest.mark.parametrize(
    ("owner", "syntax", "field"),
    [
        ("vllm", "ebnf", {"structured_outputs": {"grammar": GUIDES["ebnf"]}}),
        (
            "vllm",
            "structural_tag",
            {"structured_outputs": {"structural_tag": GUIDES["structural_tag"]}},
        ),
        ("sglang", "ebnf", {"ebnf": GUIDES["ebnf"]}),
        ("llamacpp", "ebnf", {"grammar": GUIDES["ebnf"]}),
    ],
)
async def test_grammars_are_forwarded_in_their_own_syntax(
    owner: str, syntax: Any, field: dict[str, Any]
) -> None:
    guide = Guide(syntax=syntax, definition=GUIDES[syntax], path="structured_outputs")
    answer = chunks({"content": "Hi"})
    async with backend_with_answers(answer, owner=owner) as (playing, backend):
        assert (await read(backend, Options(guide=guide))).text == "Hi"
    body = playing.bodies[0]
    assert body.items() >= field.items()
    assert GUIDES[syntax] not in body["messages"][0]["content"]


@pytest.mark.parametrize("owner", ["nobody", "openai"])
async def test_answer_wishes_use_a_field_or_instructions(owner: str) -> None:
    desk = Namespace(name="desk", description="All about the desk.", tools=(LOOK,))
    body = await request_body(Options(text=TextConfig(verbosity="low"), tools=(desk,)), owner=owner)
    first = body["messages"][0]["content"]
    assert "All about the desk." in first and first.startswith("You tell stories.")
    assert (body.get("verbosity") == "low") == (owner == "openai")
    assert ("Keep your answers short." in first) == (owner == "nobody")


async def test_trace_headers_are_forwarded() -> None:
    async with backend_with_answers(chunks({"content": "a"})) as (playing, backend):
        await read(backend, Options(trace={"traceparent": "00-1-2-01"}))
        assert playing.asked[-1][2]["traceparent"] == "00-1-2-01"


# --- responses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", STREAMS)
async def test_flavour_is_detected_from_the_model_list(flavour: str) -> None:
    owner, stream = STREAMS[flavour]
    result = {"flavour": flavour} if flavour == "openrouter" else {}
    async with backend_with_answers(stream, owner=owner, options=result) as (_, backend):
        assert backend.flavour is FLAVOURS[flavour]
        reply = await read(backend)
    assert "seen again." in reply.items[-1].text["text"]
    assert reply.finish is not None and reply.finish.reason == "stop"
    if flavour != "plain":
        assert reply.finish.usage.input_tokens == 25


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(check: Check) -> None:
    async with backend_with_answers(VLLM, owner="vllm") as (_, backend):
        await check(backend)


async def test_reasoning_in_content_is_parsed_if_configured() -> None:
    stream = chunks({"content": "<thi"}, {"content": "nk>Hm.</think>\n\nYe"}, {"content": "s."})
    async with backend_with_answers(stream, reasoning_format="think") as (_, backend):
        reply = await read(backend)
    assert [each.item.__struct_config__.tag for each in reply.items] == ["reasoning", "message"]
    assert [each.text["text"] for each in reply.items] == ["Hm.", "Yes."]
    assert all(each.closed for each in reply.items)
    async with backend_with_answers(stream) as (_, backend):
        assert (await read(backend)).text == "<think>Hm.</think>\n\nYes."


@pytest.mark.requirement("UP-THOUGHT")
async def test_token_counts_are_requested_to_count_reasoning() -> None:
    texts = {"<think>": 1, "\n": 2, "I": 3, " see</think>": 5, "\n\n": 6, "A": 7}
    chunks = [
        {"choices": [{"delta": {"content": text}}], "usage": {"completion_tokens": count}}
        for text, count in texts.items()
    ]
    stream = sse(*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
    async with backend_with_answers(stream, owner="vllm", reasoning_format="think") as (
        playing,
        backend,
    ):
        usage = (await read(backend)).finish.usage
        assert playing.bodies[0]["stream_options"]["continuous_usage_stats"] is True
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (7, 4)
    # our parser counts the reasoning itself
    assert (
        "continuous_usage_stats"
        not in (await request_body(Options(), owner="vllm"))["stream_options"]
    )
    assert (await request_body(Options(), owner="llamacpp"))["timings_per_token"] is True


async def test_too_long_conversation_is_truncated_if_allowed() -> None:
    too_long = json_answer({"error": {"code": "context_length_exceeded", "message": "…"}}, 400)
    words = "word " * 200
    items = tuple(
        Message(id=f"msg_{n}", role="user", content=(InputText(text=f"{n} {words}"),))
        for n in range(6)
    )
    talk = Conversation(items=items)
    stream = Answer(chunks({"content": "a"}))
    async with backend_with_answers(too_long, too_long, stream) as (playing, backend):
        reply = await backend.prepare(talk, Options(truncate=True))
        before = reply.input_tokens
        async with asyncio.timeout(60):
            async for _ in batches_of(reply):
                pass
        sizes = [len(body["messages"]) for body in playing.bodies]
        assert sizes[0] == 6 and sizes[0] > sizes[1] > sizes[2]
        assert playing.bodies[-1]["messages"][-1]["content"].startswith("5 ")
        assert set(reply.dropped_ids) == {f"msg_{n}" for n in range(6 - sizes[2])}
        assert reply.input_tokens < before
    async with backend_with_answers(too_long) as (playing, backend):
        with pytest.raises(BackendError) as raised:
            await read(backend, Options(), talk)
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(BackendError):  # until nothing is left to drop
            await read(backend, Options(truncate=True), talk)


@pytest.mark.parametrize("output", [(), ({"content": "a"},)])
async def test_no_retry_after_the_first_output(output: tuple[dict[str, str], ...]) -> None:
    late = {"error": {"code": "context_length_exceeded", "message": "…"}}
    pieces = [{"choices": [{"index": 0, "delta": delta}]} for delta in output]
    words = tuple(
        Message(id=f"msg_{n}", role="user", content=(InputText(text="word " * 200),))
        for n in range(3)
    )
    broken, whole = Answer(sse(*pieces, late)), Answer(chunks({"content": "b"}))
    async with backend_with_answers(broken, whole) as (playing, backend):
        conversation = read(backend, Options(truncate=True), Conversation(items=words))
        if output:
            with pytest.raises(BackendError):
                await conversation
        else:
            await conversation
        assert len(playing.bodies) == (1 if output else 2)


async def test_reply_cannot_be_resumed() -> None:
    async with backend_with_answers(chunks()) as (_, backend):
        reply = await backend.prepare(CONVERSATION, Options())
        assert reply.resume(ResumePoint((), ())) is reply
        with pytest.raises(CannotContinue):
            reply.resume(ResumePoint((1,), (2,)))


# --- setup ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"options": {"flavor": "vllm"}}, "flavor"),
        ({"options": {"flavour": "vlm"}}, "there is no 'vlm'"),
        ({"options": {"connect_s": "x"}}, "connect_s"),
        ({"reasoning_format": "thinks"}, "unknown format 'thinks'"),
        ({}, "set upstream_model"),
    ],
)
async def test_invalid_settings_raise_setup_error(more: dict[str, Any], says: str) -> None:
    async with fake() as playing:
        with pytest.raises(SetupError, match=says):
            await create_chat_backend("tiny", playing.url, **more)


async def test_settings_may_say_that_the_model_does_not_hear() -> None:
    async with backend_with_answers() as (_, backend):
        assert backend.capabilities.hears
    async with backend_with_answers(options={"hears": False}) as (_, deaf):
        assert not deaf.capabilities.hears


async def test_upstream_may_be_down_at_start() -> None:
    async with fake() as playing:
        backend = await create_chat_backend("tiny", playing.url, model="m")
        await backend.close()
        silent = await create_chat_backend(
            "tiny", playing.url, model="m", options={"flavour": "ollama"}
        )
        await silent.close()
    assert [path for path, *_ in playing.asked] == ["/v1/models"]


# --- behind a whole server ------------------------------------------------------------------------


@asynccontextmanager
async def server(*answers: Answer | list[bytes], **more: Any) -> AsyncIterator[tuple[Fake, Server]]:
    async with backend_with_answers(*answers, **more) as (playing, backend):
        whole = Server(backend, MemoryStore())
        yield playing, whole
        await whole.close()


async def test_calls_and_results_round_trip() -> None:
    call = {"index": 0, "id": "call_up", "function": {"name": "look", "arguments": '{"a":1}'}}
    async with server(
        chunks({"tool_calls": [call]}, reason="tool_calls"), chunks({"content": "Blue."})
    ) as (playing, whole):
        tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
        first = (await whole.post(tools=tools)).json()
        assert [item["type"] for item in first["output"]] == ["function_call"]
        assert first["output"][0]["call_id"] == "call_up"
        output = {"type": "function_call_output", "call_id": "call_up", "output": "blue"}
        second = await whole.post(tools=tools, input=[output], previous_response_id=first["id"])
        assert second.json()["output"][0]["content"][0]["text"] == "Blue."
    assert [m["role"] for m in playing.bodies[-1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.requirement("UP-SEALED")
@pytest.mark.parametrize("store", [True, False])
async def test_reasoning_details_return_to_their_upstream(store: bool) -> None:
    details = [{"type": "reasoning.encrypted", "data": "==", "index": 0}]
    thought = {"reasoning": "Hm", "reasoning_details": details}
    async with server(chunks(thought, {"content": "Yes."}), chunks({"content": "Again."})) as (
        playing,
        whole,
    ):
        first = (await whole.post(store=store, input="one")).json()
        assert "==" not in first["output"][0].get("encrypted_content", "")
        if store:
            await whole.post(input="two", previous_response_id=first["id"])
        else:
            messages = [{"role": "user", "content": "one"}, *first["output"]]
            await whole.post(input=[*messages, {"role": "user", "content": "two"}], store=False)
    assert playing.bodies[-1]["messages"][1]["reasoning_details"] == details


async def test_output_before_an_error_is_delivered() -> None:
    error = sse({"error": {"message": "overloaded", "code": 503}}, done=False)
    together = b"".join([*chunks({"content": "So far."})[:1], *error])
    async with server(Answer([together])) as (_, whole):
        streamed = (await whole.post(stream=True)).text
        assert '"delta":"So far."' in streamed and "event: response.failed" in streamed


async def test_disconnecting_client_ends_the_request() -> None:
    async with backend_with_answers(Answer(chunks({"content": "a"})[:1], hang=True)) as (
        playing,
        backend,
    ):
        reply = await backend.prepare(CONVERSATION, Options())
        deltas = batches_of(reply)
        async with asyncio.timeout(60):
            await anext(deltas)
            await deltas.aclose()
            await playing.gone.wait()


async def test_call_without_upstream_id_gets_an_id() -> None:
    calls = [{"index": n, "function": {"name": "look", "arguments": "{}"}} for n in range(2)]
    async with server(chunks({"tool_calls": calls})) as (_, whole):
        output = (await whole.post(tools=[{"type": "function", "name": "look"}])).json()["output"]
    assert len({item["call_id"] for item in output}) == 2 and all(i["call_id"] for i in output)


# --- the context size -----------------------------------------------------------------------------


def _talk(*texts: str) -> Conversation:
    return Conversation(
        items=tuple(
            Message(id=f"msg_{n}", role="user", content=(InputText(text=text),))
            for n, text in enumerate(texts)
        )
    )


@pytest.mark.requirement("UP-CONTEXT")
async def test_certainly_too_long_conversation_is_never_sent() -> None:
    async with backend_with_answers(chunks({"content": "a"}), context_size=100) as (
        playing,
        backend,
    ):
        for text in ("word " * 201, "字" * 801, "x" * 808):
            with pytest.raises(InvalidRequest) as refused:
                await backend.prepare(_talk(text), Options())
            assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
        assert playing.bodies == []
        for text in ("word " * 90, " " * 10_000, f"data:image/png;base64,{'A' * 9_000}"):
            await read(backend, Options(), _talk(text))
        assert len(playing.bodies) == 3, "these may fit, so the upstream decides"


@pytest.mark.requirement("UP-CONTEXT")
async def test_too_long_conversation_is_truncated_before_it_is_sent() -> None:
    async with backend_with_answers(chunks({"content": "a"}), context_size=300) as (
        playing,
        backend,
    ):
        talk = _talk(*(f"{n} {'word ' * 200}" for n in range(6)))
        reply = await backend.prepare(talk, Options(truncate=True))
        async for _ in batches_of(reply):
            pass
        (body,) = playing.bodies
        assert body["messages"][-1]["content"].startswith("5 ")
        sent = len(body["messages"])
        assert sent < 6 and reply.dropped_ids == tuple(f"msg_{n}" for n in range(6 - sent))
        with pytest.raises(InvalidRequest, match="context window"):
            await backend.prepare(_talk("word " * 1000), Options(truncate=True))


@pytest.mark.requirement("UP-CONTEXT")
@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
async def test_upstream_counts_tokens_near_the_context_size(owner: str) -> None:
    routes: dict[str, Any] = {
        "apply-template": json_answer({"prompt": "rendered"}),
        "tokenize": json_answer({"count": 100, "tokens": list(range(100))}),
    }
    async with backend_with_answers(chunks({"content": "a"}), owner=owner, context_size=100) as (
        playing,
        backend,
    ):
        playing.routes |= {f"/{path}": [answer] for path, answer in routes.items()}
        with pytest.raises(InvalidRequest) as refused:
            await backend.prepare(_talk("word " * 20), Options())
        assert refused.value.code == "context_length_exceeded"
        first = playing.bodies[0]
        assert first["messages"] == [{"role": "user", "content": "word " * 20}]
        playing.routes["/tokenize"] = [json_answer({"count": 99, "tokens": list(range(99))})]
        reply = await backend.prepare(_talk("word " * 20), Options())
        assert reply.input_tokens == 99
        playing.routes["/tokenize"] = [json_answer({"error": "broken"}, 500)]
        await read(backend, Options(), _talk("word " * 20))
        assert "stream" in playing.bodies[-1], "without a count, the upstream decides"


@pytest.mark.requirement("UP-CONTEXT")
async def test_truncation_uses_the_counts_of_the_upstream() -> None:
    counts = [json_answer({"count": count}) for count in (400, 201, 120)]
    async with backend_with_answers(chunks({"content": "a"}), owner="vllm", context_size=200) as (
        playing,
        backend,
    ):
        playing.routes["/tokenize"] = counts
        reply = await backend.prepare(
            _talk(*(f"{n} {'word ' * 20}" for n in range(8))), Options(truncate=True)
        )
        assert reply.input_tokens == 120
        sizes = [len(body["messages"]) for body in playing.bodies]
        assert len(sizes) == 3 and sizes[0] > sizes[1] > sizes[2]
        assert len(reply.dropped_ids) == 8 - sizes[2]
