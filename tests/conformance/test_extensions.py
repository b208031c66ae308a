"""Fields of vLLM and transformers beyond OpenAI's: each has its effect or is rejected by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon import __version__
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.on_demand import OnDemandBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.engines.base import Capabilities, Sampling
from antiphon.inference.conversation import Options, PromptTokens
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.web_search.index import PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire import items as it
from tests.attachments.samples import data_url, png
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, Json, Server, engine, local


def last_options(server: Server) -> Options:
    """Return the options of the last reply."""
    backend = server.backend
    assert isinstance(backend, ScriptedBackend)
    return backend.requests[-1][1]


# --- guides --------------------------------------------------------------------------------------


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize(
    ("guides", "rule", "text"),
    [
        ({"regex": "[0-9]{3}"}, "[0-9]", "123"),
        ({"choice": ["yes", 'n"o']}, '"yes"', 'n"o'),
        ({"grammar": 'start: "a" b\nb: /c+/'}, '"a"', "acc"),
        ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}, '"integer"', "{}"),
        ({"json": '{"type": "boolean"}'}, '"boolean"', "true"),
        ({"json_object": True}, '"object"', '{"a": [1]}'),
        ({"grammar": 'root ::= "a" b\nb ::= "c"+'}, "/a(?:(?:c)+)/", "acc"),
        (
            {"structural_tag": {"format": {"type": "const_string", "value": "Hi"}}},
            '"Hi"',
            "Hi",
        ),
        (
            {
                "structural_tag": '{"triggers": ["<f"], "structures": '
                '[{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]}'
            },
            '"integer"',
            "See <f>12</f>.",
        ),
    ],
    ids=[
        "regex",
        "choice",
        "grammar",
        "schema",
        "schema text",
        "object",
        "ebnf",
        "structural tag",
        "structural tag text",
    ],
)
async def test_structured_outputs_constrain_the_answer(
    serve: Serve, ask_foreground: Ask, guides: Json, rule: str, text: str
) -> None:
    scripted_engine = engine([text])
    answer = await ask_foreground(serve(local(scripted_engine)), structured_outputs=guides)
    assert answer.terminal_response["text"]["format"] == {"type": "text"}
    assert answer.terminal_response["status"] == "completed" and answer.text == text
    constraint = scripted_engine.requests[-1][1].constraint
    assert constraint is not None and constraint.needed and rule in constraint.lark
    assert (constraint.schema is not None) == ("json" in next(iter(guides)))


@pytest.mark.requirement("VN-19")
@pytest.mark.parametrize(
    ("guides", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs"),
        ({"regex": "(a"}, "structured_outputs.regex"),
        ({"grammar": "start: nothing"}, "structured_outputs.grammar"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": [1]}, "structured_outputs.choice[0]"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"structural_tag": "x"}, "structured_outputs.structural_tag"),
        ("regex", "structured_outputs"),
    ],
)
async def test_invalid_structured_outputs_are_rejected(
    serve: Serve, ask_foreground: Ask, guides: Any, param: str
) -> None:
    rejection = (
        await ask_foreground(serve(local(engine(["7"]))), structured_outputs=guides)
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)


@pytest.mark.parametrize(
    "guides",
    [
        {"regex": "(a{1000}){1000}"},
        {"regex": "a" * 20_000},
        {"choice": ["no", "a" * 20_000]},
        {"grammar": f'start: "{"a" * 20_000}"'},
        {"grammar": "start: /(?:x|(a{1000}){100})/"},
        {"json": {"const": "a" * 20_000}},
        {"json": {"type": "object", "properties": {"a": {"enum": ["b", "a" * 20_000]}}}},
        {"json": {"type": "string", "pattern": "(a{1000}){100}"}},
    ],
)
async def test_unbounded_literal_grammar_is_rejected(
    serve: Serve, ask_foreground: Ask, guides: Json
) -> None:
    rejection = (
        await ask_foreground(serve(local(engine(["7"]))), structured_outputs=guides)
    ).rejection
    assert rejection["http"] == 400 and rejection["code"] in (
        "invalid_grammar",
        "invalid_json_schema",
    )


async def test_structured_outputs_and_text_format_are_exclusive(
    serve: Serve, ask_foreground: Ask
) -> None:
    rejection = await ask_foreground(
        serve(), structured_outputs={"regex": "a"}, text={"format": {"type": "json_object"}}
    )
    assert rejection.rejection["param"] == "structured_outputs"


# --- engine options ------------------------------------------------------------------------------


async def test_engine_options_are_passed_through(serve: Serve, ask: Ask) -> None:
    server = serve(ScriptedBackend())
    await ask(
        server,
        priority=-3,
        cache_salt="mine",
        ignore_eos=True,
        vllm_xargs={"a": 1},
        mm_processor_kwargs={"b": 2},
        request_id="r-1",
    )
    options = last_options(server)
    assert (options.priority, options.cache_salt, options.ignore_eos) == (-3, "mine", True)
    assert options.extra == {"a": 1, "mm_processor_kwargs": {"b": 2}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", 1),
        ("cache_salt", "a"),
        ("vllm_xargs", {"a": 1}),
        ("mm_processor_kwargs", {"a": 1}),
    ],
)
async def test_unsupported_engine_options_are_rejected(
    serve: Serve, ask_foreground: Ask, field: str, value: Any
) -> None:
    rejection = (await ask_foreground(serve(local(engine(["7"]))), **{field: value})).rejection
    assert (rejection["http"], rejection["code"]) == (400, "unsupported_parameter")
    assert rejection["param"].startswith(field)


async def test_empty_cache_salt_is_rejected(serve: Serve, ask_foreground: Ask) -> None:
    assert (await ask_foreground(serve(), cache_salt="")).rejection["param"] == "cache_salt"


async def test_trace_context_is_forwarded(serve: Serve) -> None:
    server = serve(ScriptedBackend())
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    reply = await server.client.post(
        "/v1/responses",
        json={"model": "tiny", "input": "hi"},
        headers={"traceparent": parent, "tracestate": "a=b"},
    )
    assert reply.status_code == 200
    assert last_options(server).trace == {"traceparent": parent, "tracestate": "a=b"}


async def test_special_tokens_are_never_shown(serve: Serve, ask_foreground: Ask) -> None:
    rejection = (await ask_foreground(serve(), skip_special_tokens=False)).rejection
    assert rejection["param"] == "skip_special_tokens"
    assert (await ask_foreground(serve(), skip_special_tokens=True)).text


@pytest.mark.parametrize(("shown", "text"), [(True, "one two STOP"), (False, "one two ")])
async def test_stop_string_can_be_included(serve: Serve, ask: Ask, shown: bool, text: str) -> None:
    server = serve(local(engine(["one two STOP three"])))
    answer = await ask(server, stop=["STOP"], include_stop_str_in_output=shown)
    assert answer.text.strip() == text.strip()
    assert answer.terminal_response["matched_stop"] == "STOP"


@pytest.mark.parametrize("as_text", [True, False])
async def test_generation_config_sets_sampling(
    serve: Serve, ask_foreground: Ask, as_text: bool
) -> None:
    server = serve(ScriptedBackend())
    config = {"max_new_tokens": 9, "top_k": 3, "do_sample": False, "temperature": 0.5}
    given: Any = '{"max_new_tokens": 9, "top_k": 3, "do_sample": false}' if as_text else config
    await ask_foreground(server, generation_config=given, top_p=0.5)
    options = last_options(server)
    assert (options.max_output_tokens, options.top_k, options.top_p) == (9, 3, 0.5)
    assert options.temperature == 0
    rejection = (await ask_foreground(server, generation_config={"num_beams": 4})).rejection
    assert rejection["param"] == "generation_config.num_beams"


@pytest.mark.parametrize("sampled", [True, False])
async def test_generation_config_as_transformers_writes_it(
    serve: Serve, ask_foreground: Ask, sampled: bool
) -> None:
    server = serve(ScriptedBackend())
    written = {
        "_from_model_config": True,
        "bos_token_id": 1,
        **({"do_sample": True} if sampled else {}),
        "eos_token_id": [2, 3],
        "max_new_tokens": 9,
        "num_beams": 1,
        "pad_token_id": 0,
        "stop_strings": None,
        "temperature": 0.6,
        "top_p": 0.95,
        "transformers_version": "5.3.0",
        "use_cache": True,
        "output_scores": False,
    }
    answer = await ask_foreground(server, generation_config=json.dumps(written, indent=2) + "\n")
    assert answer.response is not None, answer.error
    options = last_options(server)
    assert (options.max_output_tokens, options.top_p) == (9, 0.95)
    assert options.temperature == (0.6 if sampled else 0)
    for field, value in (("num_beams", 2), ("typical_p", 0.5), ("bad_words_ids", [[1]])):
        rejection = (
            await ask_foreground(server, generation_config={**written, field: value})
        ).rejection
        assert rejection["param"] == f"generation_config.{field}"


async def test_input_may_be_a_single_item(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend()
    answer = await ask(serve(backend), input={"role": "user", "content": "Hello"})
    assert answer.response is not None, answer.error
    (item,) = backend.requests[-1][0].items
    assert isinstance(item, it.Message) and item.content == (it.InputText(text="Hello"),)


async def test_tools_by_the_names_of_gpt_oss_servers(serve: Serve, ask_foreground: Ask) -> None:
    answer = await ask_foreground(
        serve(), tools=[{"type": "browser_search"}, {"type": "container"}]
    )
    assert answer.terminal_response["tools"] == [
        {"type": "web_search"},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ]


# --- earlier messages, raw messages and timings --------------------------------------------------

_HARMONY = [
    {"role": "system", "content": "rebuilt"},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "channel": "analysis", "content": "Look it up."},
    {
        "role": "assistant",
        "channel": "commentary",
        "recipient": "functions.weather",
        "content": [{"type": "text", "text": '{"city": "Oslo"}'}],
    },
    {"author": {"role": "tool", "name": "functions.weather"}, "content": "rain"},
    {"role": "assistant", "channel": "final", "content": "It rains."},
]
_CHAT = [
    {"role": "developer", "content": "rebuilt"},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "reasoning_content": "Look it up.",
        "content": None,
        "tool_calls": [
            {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
]


@pytest.mark.requirement("VN-33")
@pytest.mark.parametrize("messages", [_HARMONY, _CHAT], ids=["harmony", "chat"])
async def test_previous_messages_set_the_history(serve: Serve, ask: Ask, messages: Any) -> None:
    backend = ScriptedBackend()
    await ask(serve(backend), previous_input_messages=messages, input="And tomorrow?")
    items = backend.requests[-1][0].items
    assert [type(item) for item in items] == [
        it.Message,
        it.Reasoning,
        it.FunctionCall,
        it.FunctionCallOutput,
        it.Message,
        it.Message,
    ]
    call, result = items[2], items[3]
    assert isinstance(call, it.FunctionCall) and isinstance(result, it.FunctionCallOutput)
    assert call.name == "weather" and call.call_id == result.call_id
    assert result.output == "rain"


@pytest.mark.requirement("VN-13")
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("text", "previous_input_messages"),
        ([1], "previous_input_messages[0]"),
        ([{"content": "a"}], "previous_input_messages[0].role"),
        ([{"role": "king"}], "previous_input_messages[0].role"),
        ([{"role": "user", "content": 4}], "previous_input_messages[0].content"),
        ([{"role": "tool", "content": "a"}], "previous_input_messages[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}],
            "previous_input_messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
async def test_invalid_previous_messages_are_rejected(
    serve: Serve, ask_foreground: Ask, messages: Any, param: str
) -> None:
    rejection = (await ask_foreground(serve(), previous_input_messages=messages)).rejection
    assert (rejection["http"], rejection["param"]) == (400, param)
    both = await ask_foreground(serve(), previous_input_messages=[], previous_response_id="resp_1")
    assert both.rejection["param"] == "previous_response_id"


@pytest.mark.requirement("VN-13")
async def test_images_of_previous_messages_are_kept(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend()
    url = data_url(png())
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
    ]
    await ask(serve(backend), previous_input_messages=[{"role": "user", "content": parts}])
    item = backend.requests[-1][0].items[0]
    assert isinstance(item, it.Message)
    assert item.content == (
        it.InputText(text="What is this?"),
        it.InputImage(image_url=url, detail="low"),
    )


@pytest.mark.requirement("VN-13")
@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "assistant", "recipient": "browser.search", "content": "{}"}, "recipient"),
        ({"role": "assistant", "recipient": "python", "content": "1+1"}, "recipient"),
        ({"role": "tool", "name": "browser.search", "content": "found"}, "name"),
        ({"author": {"role": "tool", "name": "python"}, "content": "2"}, "name"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "video_url"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content[0].image_url"),
    ],
)
async def test_previous_messages_that_cannot_be_translated_are_named(
    serve: Serve, ask_foreground: Ask, message: dict[str, Any], field: str
) -> None:
    rejection = (await ask_foreground(serve(), previous_input_messages=[message])).rejection
    assert (rejection["http"], rejection["param"]) == (
        400,
        f"previous_input_messages[0].{field}",
    )


@pytest.mark.requirement("VN-64", "GO-14")
async def test_raw_input_and_output_messages_can_be_returned(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["<think>\nHm.\n</think>\n\nHello"])
    server = serve(local(scripted_engine))
    answer = await ask(server, enable_response_messages=True)
    (given,), (message,) = (
        answer.terminal_response["input_messages"],
        answer.terminal_response["output_messages"],
    )
    prompt, sampling = scripted_engine.requests[-1]
    assert isinstance(sampling, Sampling)
    assert given["tokens"] == list(prompt.ids) and given["message"] == scripted_engine.text(prompt)
    assert message["tokens"] == scripted_engine.sampled[-1]
    assert message["message"].startswith("<think>\nHm.\n</think>\n\nHello")
    plain = await ask(server)
    assert (
        "input_messages" not in plain.terminal_response and "metrics" not in plain.terminal_response
    )
    assert isinstance(server.backend, LocalBackend)


@pytest.mark.requirement("VN-64", "VN-33")
async def test_raw_messages_continue_the_conversation(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["Hello", "Again"])
    server = serve(local(scripted_engine))
    first = (
        await ask(server, input="Hi", store=False, enable_response_messages=True)
    ).terminal_response
    messages = [*first["input_messages"], *first["output_messages"]]
    again = await ask(
        server,
        previous_input_messages=messages,
        input="And now?",
        enable_response_messages=True,
    )
    assert again.terminal_response["status"] == "completed"
    tokens = [*messages[0]["tokens"], *messages[1]["tokens"]]
    prompt = scripted_engine.requests[-1][0]
    assert list(prompt.ids[: len(tokens)]) == tokens
    items = again.terminal_response["input_messages"][0]["items"]
    assert [item["content"][0]["text"] for item in items] == ["Hi", "Hello", "And now?"]


async def test_log_probabilities_can_show_token_ids(serve: Serve, ask: Ask) -> None:
    fields: Json = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    answer = await ask(serve(local(engine(["Hi"]))), return_tokens_as_token_ids=True, **fields)
    first, *_ = answer.output[-1]["content"][0]["logprobs"]
    assert (first["token"], first["bytes"]) == ("token_id:72", [72])
    assert first["top_logprobs"][0]["token"].startswith("token_id:")
    rejection = (await ask(serve(ScriptedBackend()), return_tokens_as_token_ids=1)).rejection
    assert rejection["param"] == "return_tokens_as_token_ids"


_RESULTS: Json = {
    "chat": {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    "name": {"role": "tool", "name": "functions.f", "content": [{"type": "text", "text": "rain"}]},
    "harmony": {
        "author": {"role": "tool", "name": "functions.f"},
        "recipient": "assistant",
        "channel": "commentary",
        "content": [{"type": "text", "text": "rain"}],
    },
    "item": {"type": "function_call_output", "call_id": "c1", "output": "rain"},
}


@pytest.mark.requirement("VN-33")
@pytest.mark.parametrize("result", _RESULTS.values(), ids=_RESULTS)
async def test_tool_result_follows_raw_messages(serve: Serve, ask: Ask, result: Json) -> None:
    backend = ScriptedBackend()
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    entry = {"type": "raw_message_tokens", "tokenizer": "bytes", "tokens": [1]}
    raw = [
        {**entry, "items": [{"role": "user", "content": "Hi"}]},
        {**entry, "items": [call]},
        result,
    ]
    await ask(serve(backend), previous_input_messages=raw, input="Then?")
    _, made, answered, _ = backend.requests[-1][0].items
    assert isinstance(answered, it.FunctionCallOutput)
    assert (answered.call_id, answered.output) == (made.call_id, "rain")


async def test_tokens_of_raw_messages_are_reused(serve: Serve, ask: Ask) -> None:
    backend = ScriptedBackend()
    entry = {"type": "raw_message_tokens", "tokenizer": "bytes", "message": "ignored"}
    user = {"role": "user", "content": "Hi"}
    messages = {"role": "assistant", "content": "Hello"}
    raw = [
        {**entry, "tokens": [1, 2], "items": [user]},
        {**entry, "tokens": [3], "items": [messages]},
    ]
    await ask(serve(backend), previous_input_messages=raw, input="More")
    conversation = backend.requests[-1][0]
    assert conversation.stored_tokens == PromptTokens((1, 2, 3), "bytes")
    assert len(conversation.items) == 3
    mixed = [raw[0], {**raw[1], "tokenizer": "another"}, {"role": "user", "content": "Then?"}]
    await ask(serve(backend), previous_input_messages=mixed, input="More")
    conversation = backend.requests[-1][0]
    assert conversation.stored_tokens is None and len(conversation.items) == 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ([{"items": None}], "[0].items"),
        ([{"items": [{"role": "king", "content": "a"}]}], "[0].items[0].role"),
        ([{"tokens": ["a"]}], "[0].tokens[0]"),
        ([{"tokens": [-1]}], "[0].tokens[0]"),
        ([{"tokenizer": 4}], "[0].tokenizer"),
        ([{}, {}, {}], "[2]"),
    ],
)
async def test_invalid_raw_messages_are_rejected(
    serve: Serve, ask_foreground: Ask, changes: list[Json], field: str
) -> None:
    entry = {"type": "raw_message_tokens", "tokens": [1], "tokenizer": "a", "items": []}
    messages = [
        {name: value for name, value in {**entry, **change}.items() if value is not None}
        for change in changes
    ]
    rejection = (
        await ask_foreground(serve(), input="a", previous_input_messages=messages)
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, f"previous_input_messages{field}")


async def test_raw_messages_need_a_model_with_tokens(serve: Serve, ask_foreground: Ask) -> None:
    rejection = (
        await ask_foreground(serve(ScriptedBackend()), enable_response_messages=True)
    ).rejection
    assert rejection["param"] == "enable_response_messages"


async def test_raw_messages_need_a_reply_with_tokens(serve: Serve, ask_foreground: Ask) -> None:
    """Retries hide the tokens of a reply whose format its engine does not enforce."""
    scripted_engine = engine(["{}"])
    scripted_engine.capabilities = Capabilities()
    text = {"format": {"type": "json_object"}}
    answer = await ask_foreground(
        serve(local(scripted_engine)), enable_response_messages=True, text=text
    )
    assert (answer.rejection["http"], answer.rejection["param"]) == (
        400,
        "enable_response_messages",
    )
    assert not scripted_engine.requests


@pytest.mark.requirement("TR-10")
async def test_timings_can_be_returned(serve: Serve, ask: Ask) -> None:
    metrics = (await ask(serve(), return_metrics=True)).terminal_response["metrics"]
    assert set(metrics) == {"time_to_first_token_ms", "generation_time_ms", "total_time_ms"}


async def test_usage_has_the_tokens_of_each_turn_on_request(serve: Serve, ask: Ask) -> None:
    usage = (await ask(serve(), return_metrics=True)).terminal_response["usage"]
    counts = (usage["input_tokens"], usage["output_tokens"])
    assert usage["input_tokens_details"]["input_tokens_per_turn"] == [counts[0]]
    assert usage["output_tokens_details"]["output_tokens_per_turn"] == [counts[1]]
    assert usage["output_tokens_details"]["tool_output_tokens_per_turn"] == [0]
    assert usage["output_tokens_details"]["tool_output_tokens"] == 0
    plain = (await ask(serve())).terminal_response["usage"]
    assert set(plain["output_tokens_details"]) == {"reasoning_tokens"}


async def test_raw_messages_of_a_model_that_loads_during_the_run(serve: Serve, ask: Ask) -> None:
    """A hosted tool renders the prompt in the run, when the first prompt is not known."""
    scripted_engine = engine(["Hello"])

    async def make(progress: object) -> LocalBackend:
        return local(scripted_engine)

    backend = OnDemandBackend("tiny", make, ready_timeout_s=0)
    providers = {"web_search": WebSearchProvider(PageIndex(":memory:"), is_external=False)}
    answer = await ask(
        serve(backend, providers=providers),
        enable_response_messages=True,
        tools=[{"type": "web_search"}],
    )
    assert answer.terminal_response["status"] == "completed", answer.error
    (message,) = answer.terminal_response["output_messages"]
    assert message["tokens"] == scripted_engine.sampled[-1]


# --- routes of vLLM's server ----------------------------------------------------------------------


async def test_text_is_tokenized_and_detokenized(serve: Serve) -> None:
    server = serve(local(engine(["x"])))
    body = {"model": "tiny", "prompt": "Hi ✓", "return_token_strs": True}
    tokenized = (await server.client.post("/tokenize", json=body)).json()
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 4096
    text = await server.client.post("/detokenize", json={"tokens": tokenized["tokens"]})
    assert text.json() == {"prompt": "Hi ✓"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": False}, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "model": "nobody"}, "model"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**30]}, "tokens"),
    ],
)
async def test_invalid_tokenizer_request_is_rejected(
    serve: Serve, path: str, body: Json, param: str
) -> None:
    answer = await serve(local(engine(["x"]))).client.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param, answer.text


async def test_model_without_known_tokens_cannot_tokenize(serve: Serve) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        answer = await serve(ScriptedBackend(), on=MemoryStore()).client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_version_and_load_are_reported(serve: Serve) -> None:
    server = serve()
    assert (await server.client.get("/version")).json() == {"version": __version__}
    assert (await server.client.get("/load")).json() == {"server_load": 0}
