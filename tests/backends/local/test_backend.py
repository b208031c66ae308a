"""The local backend over a scripted engine: requests to the engine, and replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.base import Rendered
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.errors import BackendError, CannotContinue, InvalidRequest
from antiphon.inference.conversation import (
    Conversation,
    Options,
    PromptTokens,
    ResumePoint,
    ToolChoice,
)
from antiphon.inference.tokens import Chunk, ModelCard, Prompt
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.support.encoding_work import count_ids
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.replies import batches_of, deltas_of
from antiphon.wire.items import (
    AdditionalTools,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
)
from antiphon.wire.response import JsonObjectFormat, TextConfig
from antiphon.wire.tools import Function
from tests.attachments.samples import data_url, png

SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
TEMPLATE = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}\n"
    "{% endfor %}{{ '<tool_call>\n<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.reasoning_content %}"
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{- message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '<tool_call>\n' + call.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WEATHER = Function(
    name="weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
)
LOOK = Function(name="look", parameters={"type": "object"})
ONLY_LOOK = ToolChoice("auto", frozenset({("look", None)}))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def user(text: str, id: str = "") -> Message:
    return Message(id=id, role="user", content=(InputText(text=text),))


def assistant(text: str, id: str = "") -> Message:
    return Message(id=id, role="assistant", content=(OutputText(text=text),))


def engine(
    *replies: Any, context: int = 2000, template: str = TEMPLATE, **more: Any
) -> ScriptedEngine:
    card = ModelCard(
        name="m",
        context_size=context,
        chat_template=template,
        eos_token="<|im_end|>",
        fingerprint="f",
    )
    return ScriptedEngine(replies or ("Hello!",), special=SPECIAL, card=card, **more)


def local(engine: ScriptedEngine) -> LocalBackend:
    return LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))


class CompleteReply(Struct):
    """A complete reply."""

    deltas: list[Delta]
    kept: PromptTokens | None

    @property
    def finish(self) -> Finish:
        assert isinstance(self.deltas[-1], Finish)
        return self.deltas[-1]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, Text))

    @property
    def opened(self) -> list[Item]:
        return [delta.item for delta in self.deltas if isinstance(delta, Open)]

    @property
    def sampled(self) -> tuple[int, ...]:
        return tuple(
            id for delta in self.deltas if isinstance(delta, SampledTokens) for id in delta.ids
        )


async def ask(
    backend: LocalBackend, *items: Item, kept: PromptTokens | None = None, **options: Any
) -> CompleteReply:
    conversation = Conversation(items=items, stored_tokens=kept)
    reply = await backend.prepare(conversation, Options(**options))
    return CompleteReply([delta async for delta in deltas_of(reply)], reply.prompt_tokens)


@pytest.mark.requirement("D-80")
async def test_an_answer_is_text_and_a_finish_with_exact_usage() -> None:
    played = engine("Hello!<|im_end|>")
    outcome = await ask(local(played), user("Hi"))
    assert outcome.text == "Hello!"
    assert [type(item) for item in outcome.opened] == [Message]
    assert outcome.finish.reason == "stop"
    usage = outcome.finish.usage
    assert usage.input_tokens == len(played.requests[0][0].ids)
    assert usage.output_tokens == len("Hello!") + 1 == len(outcome.sampled)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.requirement("VN-62")
async def test_reasoning_tokens_are_counted() -> None:
    outcome = await ask(local(engine("<think>\nabc\n</think>\n\nYes<|im_end|>")), user("Hi"))
    assert [type(item) for item in outcome.opened] == [Reasoning, Message]
    usage = outcome.finish.usage
    details = usage.output_tokens_details
    assert len("abc") <= details.reasoning_tokens <= len("\nabc\n") + 2
    assert details.reasoning_tokens < usage.output_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


@pytest.mark.parametrize("limit", [1, 3])
async def test_token_limit_truncates_and_leaves_the_item_open(limit: int) -> None:
    outcome = await ask(local(engine("Hello there")), user("Hi"), max_output_tokens=limit)
    assert outcome.finish.reason == "length"
    assert outcome.finish.usage.output_tokens == limit
    assert outcome.text == "Hello"[:limit]
    assert not any(isinstance(delta, Close) for delta in outcome.deltas)


async def test_full_context_truncates() -> None:
    played = engine("y" * 500, context=100)
    outcome = await ask(local(played), user("Hi"), max_output_tokens=10_000)
    assert outcome.finish.reason == "length"
    usage = outcome.finish.usage
    assert usage.total_tokens == 100
    assert played.requests[0][1].max_tokens == 100 - usage.input_tokens


@pytest.mark.parametrize(("text", "is_thought"), [("Hello", False), ("<think>\nHello", True)])
async def test_unreported_tokens_count_as_usage(
    monkeypatch: pytest.MonkeyPatch, text: str, is_thought: bool
) -> None:
    played = engine(text)
    generate = played.generate

    async def counted(prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        async for chunk in generate(prompt, sampling):
            yield replace(chunk, unreported_tokens=2) if chunk.finish else chunk

    monkeypatch.setattr(played, "generate", counted)
    usage = (await ask(local(played), user("Hi"), max_output_tokens=5)).finish.usage
    assert usage.output_tokens == 7 and usage.total_tokens == usage.input_tokens + 7
    thinking = usage.output_tokens_details.reasoning_tokens
    assert thinking > 2 if is_thought else thinking == 0


async def test_stop_strings_end_the_text() -> None:
    outcome = await ask(local(engine("one, two, three", chunk=4)), user("Hi"), stop=(", th",))
    assert outcome.text == "one, two"
    assert outcome.finish.reason == "stop"


async def test_sampling_options_reach_the_engine() -> None:
    played = engine()
    body: dict[str, Any] = {
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.1,
        "logit_bias": {65: -1.0},
        "logprobs": 2,
        "cache_key": "k",
    }
    outcome = await ask(local(played), user("Hi"), **body)
    sampling = played.requests[0][1]
    assert {name: getattr(sampling, name) for name in body} == body
    logprobs = [p for delta in outcome.deltas if isinstance(delta, Text) for p in delta.logprobs]
    assert "".join(each.token for each in logprobs) == "Hello!"
    assert {len(each.top_logprobs) for each in logprobs} == {2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1.0}, "frequency_penalty"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"seed": 1}, "seed"),
        ({"logprobs": 0}, "include"),
    ],
)
async def test_unsupported_options_are_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    played = engine(capabilities=Capabilities())
    with pytest.raises(InvalidRequest) as refused:
        await ask(local(played), user("Hi"), **fields)
    assert refused.value.param == param
    assert refused.value.code == "unsupported_parameter"
    assert not played.requests


async def test_optional_constraint_is_dropped_if_unsupported() -> None:
    for able in (True, False):
        played = engine(capabilities=Capabilities(constraints=able))
        assert (await ask(local(played), user("Hi"), tools=(WEATHER,))).text == "Hello!"
        assert (played.requests[0][1].constraint is not None) is able


async def test_json_enforced_from_the_first_token_has_no_reasoning() -> None:
    written = '{"said": "<think>hm</think>, well"}'
    for able in (Capabilities(schemas=True), Capabilities(constraints=True)):
        played = engine(written, capabilities=able)
        outcome = await ask(local(played), user("Hi"), text=TextConfig(format=JsonObjectFormat()))
        # text that the grammar allows in a string is part of it
        assert [type(item) for item in outcome.opened] == [Message] and outcome.text == written


async def test_neutral_option_values_are_accepted() -> None:
    played = engine(capabilities=Capabilities())
    idle = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}
    assert (await ask(local(played), user("Hi"), **idle)).text == "Hello!"


@pytest.mark.parametrize(
    ("fields", "reaches"),
    [
        ({"top_k": -1, "top_p": 0.5}, {"top_k": 0, "top_p": 0.5}),
        ({"top_p": 0, "temperature": 2.0}, {"temperature": 0, "top_p": 1, "min_p": None}),
        ({"min_p": 1, "temperature": 2.0}, {"temperature": 0, "top_p": 1, "min_p": None}),
    ],
)
async def test_boundary_values_are_replaced_by_equivalents(
    fields: dict[str, Any], reaches: dict[str, Any]
) -> None:
    played = engine()
    await ask(local(played), user("Hi"), **fields)
    sampling = played.requests[0][1]
    assert {name: getattr(sampling, name) for name in reaches} == reaches


async def test_logit_bias_of_unknown_token_is_rejected() -> None:
    played = engine()
    size = played.tokenizer.size
    await ask(local(played), user("Hi"), logit_bias={size - 1: 1.0})
    with pytest.raises(InvalidRequest) as refused:
        await ask(local(played), user("Hi"), logit_bias={5: 1.0, size: 1.0})
    assert refused.value.param == f"logit_bias.{size}" and len(played.requests) == 1


async def test_too_many_logprobs_are_rejected() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await ask(local(engine()), user("Hi"), logprobs=21)
    assert refused.value.param == "top_logprobs"


@pytest.mark.parametrize("size", [1, 7, 500])
async def test_engine_stops_after_the_only_allowed_call(size: int) -> None:
    played = engine(f"{CALL}\n{CALL}<|im_end|>", chunk=size)
    outcome = await ask(local(played), user("Hi"), tools=(WEATHER,), parallel_tool_calls=False)
    assert [type(item) for item in outcome.opened] == [FunctionCall]
    assert outcome.text == '{"city": "Oslo"}'
    assert outcome.finish.reason == "stop"
    assert played.aborted == (size < 500)
    used = outcome.finish.usage.output_tokens
    assert used == len(outcome.sampled) and outcome.sampled == tuple(played.sampled[0][:used])
    spelled = b"".join(map(played.tokenizer.piece, outcome.sampled)).decode()
    assert spelled + "\n</tool_call>" == CALL  # whatever else had come


async def test_parallel_calls_are_allowed_by_default() -> None:
    outcome = await ask(local(engine(f"{CALL}\n{CALL}<|im_end|>")), user("Hi"), tools=(WEATHER,))
    assert [type(item) for item in outcome.opened] == [FunctionCall, FunctionCall]


@pytest.mark.requirement("GO-13")
async def test_stopped_reply_ends_with_its_usage() -> None:
    scripted = engine("abcdefgh" * 50, chunk=1)
    reply = await local(scripted).prepare(Conversation((user("hi"),)), Options())
    batches = []
    async for batch in batches_of(reply):
        batches.append(batch)
        reply.stop()
    last = batches[-1][-1]
    assert isinstance(last, Finish) and last.reason == "length"
    assert 0 < last.usage.output_tokens < 10


async def test_closing_the_deltas_stops_the_engine() -> None:
    played = engine("a long story")
    reply = await local(played).prepare(Conversation(items=(user("Hi"),)), Options())
    async with aclosing(deltas_of(reply)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Text):
                break
    assert played.aborted == 1
    assert len(played.sampled[0]) < len("a long story")


async def test_engine_error_fails_the_run() -> None:
    with pytest.raises(BackendError, match="broken"):
        await ask(local(engine(BackendError("broken"))), user("Hi"))


async def test_next_prompt_extends_the_sampled_tokens() -> None:
    played = engine("Hello!<|im_end|>", "Fine.<|im_end|>")
    backend = local(played)
    first = await ask(backend, user("Hi"))
    assert first.kept is not None
    stored_tokens = PromptTokens(ids=(*first.kept.ids, *first.sampled), fingerprint="f")
    outcome = await ask(
        backend, user("Hi"), assistant("Hello!"), user("How are you?"), kept=stored_tokens
    )
    assert played.requests[1][0].ids[: len(stored_tokens.ids)] == stored_tokens.ids
    assert outcome.finish.usage.input_tokens_details.cached_tokens == len(stored_tokens.ids)


# --- truncation -----------------------------------------------------------------------------------

LONG = (
    user("first " * 10, "i1"),
    FunctionCall(id="i2", call_id="c1", name="weather", arguments="{}"),
    FunctionCallOutput(id="i3", call_id="c1", output="sunny " * 10),
    assistant("second " * 10, "i4"),
    user("last", "i5"),
)


async def test_too_long_conversation_is_rejected() -> None:
    with pytest.raises(InvalidRequest) as refused:
        await ask(local(engine(context=200)), *LONG)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input"
    assert refused.value.message.startswith("Your input exceeds the context window of this model.")


async def size(items: tuple[Item, ...]) -> int:
    """Tokens of the prompt."""
    conversation = Conversation(items=items, instructions="Be kind.")
    return (await local(engine()).prepare(conversation, Options())).input_tokens


@pytest.mark.requirement("API-TRUNCATION")
@pytest.mark.parametrize("kept", [(3, 4), (4,)])
async def test_truncation_drops_the_oldest_items_and_whole_calls(kept: tuple[int, ...]) -> None:
    rest = tuple(LONG[index] for index in kept)
    context = await size(rest) + 16
    for room, dropped in ((context, len(LONG) - len(rest)), (await size(LONG) + 1, 0)):
        played = engine(context=room, capabilities=Capabilities(constraints=True))
        conversation = Conversation(items=LONG, instructions="Be kind.")
        reply = await local(played).prepare(
            conversation, Options(truncate=True, max_output_tokens=16)
        )
        assert reply.dropped_ids == tuple(item.id for item in LONG[:dropped])
        assert reply.input_tokens == await size(LONG[dropped:])


async def test_truncated_conversation_keeps_its_beginning_for_some_turns() -> None:
    """Each change of the beginning lets the engine compute the whole prompt again."""
    played = engine(context=2000, capabilities=Capabilities(cached_tokens=True))
    backend, begins, sizes = local(played), list[int](), list[int]()
    items: tuple[Item, ...] = ()
    for turn in range(60):
        items = (*items, user("question " * 3, f"u{turn}"))
        reply = await backend.prepare(
            Conversation(items, "Be kind."), Options(truncate=True, max_output_tokens=16)
        )
        begins.append(len(reply.dropped_ids))
        sizes.append(reply.input_tokens)
        items = (*items, assistant("answer " * 10, f"a{turn}"))
    assert begins == sorted(begins) and begins[-1] > 0
    truncated = [count for count in begins if count]
    assert len(set(truncated)) <= len(truncated) / 3
    assert min(sizes[-len(truncated) :]) > 0.6 * 2000 and max(sizes) < 2000


async def test_an_output_is_dropped_with_its_call() -> None:
    context = await size(LONG[3:]) + 15  # the call alone would have fitted
    played = engine(context=max(context, await size(LONG[1:]) - 20))
    reply = await local(played).prepare(
        Conversation(items=LONG, instructions="Be kind."),
        Options(truncate=True, max_output_tokens=16),
    )
    assert {"i2", "i3"} <= set(reply.dropped_ids)


async def test_truncation_never_drops_the_last_user_message() -> None:
    with pytest.raises(InvalidRequest, match="context window"):
        await ask(local(engine(context=100)), user("a"), user("b" * 200), truncate=True)


@pytest.mark.parametrize(("texts", "chars"), [(2_000, 100), (60, 10_000)])
async def test_truncation_encodes_no_long_text_again_and_again(
    monkeypatch: pytest.MonkeyPatch, texts: int, chars: int
) -> None:
    """Each attempt ends when its prompt is much too long. The first one measures the prompt."""
    backend = local(engine(context=1000))
    encode, made = backend.engine.tokenizer.encode, 0

    def counting(text: str, *, special: bool) -> list[int]:
        nonlocal made
        ids: list[int] = []
        for start in range(0, len(text), 100):
            window = encode(text[start : start + 100], special=special)
            made += len(window)
            count_ids(len(window))
            ids += window
        return ids

    monkeypatch.setattr(backend.engine.tokenizer, "encode", counting)
    items = [user("a" * chars, f"i{number}") for number in range(texts)]
    conversation = Conversation(items=(*items, user("Now.", "last")))
    reply = await backend.prepare(conversation, Options(truncate=True, max_output_tokens=16))
    assert reply.input_tokens < 1000
    attempts = 2 * texts.bit_length()  # at most: one search for each size that is tried
    assert made < 16 * 1_100 + attempts * 2 * 1_100


async def test_truncation_preserves_developer_messages() -> None:
    rules = Message(id="i0", role="developer", content=(InputText(text="RULES"),))
    played = engine(context=150)
    reply = await local(played).prepare(
        Conversation(items=(rules, *LONG)), Options(truncate=True, max_output_tokens=16)
    )
    assert "i0" not in reply.dropped_ids


async def test_closing_the_backend_closes_the_engine() -> None:
    played = engine()
    await local(played).close()
    assert played.closed


# --- reasoning budgets ----------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "thought"), [(0, ""), (1, ""), (3, "ab"), (5, "abcd")])
async def test_thinking_budget_ends_reasoning_and_starts_the_answer(
    budget: int, thought: str
) -> None:
    played = engine("<think>\nabcdefghijkl\n</think>\n\nYes<|im_end|>", "No<|im_end|>")
    outcome = await ask(local(played), user("Hi"), thinking_budget=budget)
    assert [type(item) for item in outcome.opened] == [*[Reasoning] * bool(thought), Message]
    assert outcome.text == f"{thought}No"
    first, second = played.requests
    assert played.tokenizer.special["</think>"] in second[0].ids[len(first[0].ids) :]
    assert second[0].ids[: len(first[0].ids)] == first[0].ids
    assert (
        second[0].ids[len(first[0].ids) :]
        == outcome.sampled[: len(second[0].ids) - len(first[0].ids)]
    )
    usage = outcome.finish.usage
    assert usage.output_tokens == len(outcome.sampled)
    assert second[1].max_tokens == first[1].max_tokens - (len(second[0].ids) - len(first[0].ids))
    assert outcome.finish.reason == "stop" and played.aborted == 1


@pytest.mark.parametrize("size", [1, 2, 3, 50])
async def test_thinking_budget_is_exact_for_any_chunk_size(size: int) -> None:
    output = "<think>\nabcdefghijkl\n</think>\n\nYes<|im_end|>"
    played = engine(output, "No<|im_end|>", chunk=size)
    outcome = await ask(local(played), user("Hi"), thinking_budget=3)
    assert outcome.text == "abNo"
    ids = outcome.sampled  # <think> \n a b, \n </think> \n \n, N o <|im_end|>
    assert outcome.finish.usage.output_tokens == len(ids) == 4 + 4 + 3


async def test_reply_that_ends_within_its_budget_is_complete() -> None:
    played = engine("<think>\nab<|im_end|>", chunk=50)
    outcome = await ask(local(played), user("Hi"), thinking_budget=4)
    assert outcome.text == "ab" and len(played.requests) == 1


async def test_unused_thinking_budget_changes_nothing() -> None:
    played = engine("<think>\nabc\n</think>\n\nYes<|im_end|>")
    outcome = await ask(local(played), user("Hi"), thinking_budget=100)
    assert outcome.text == "abcYes" and len(played.requests) == 1


async def test_answer_after_a_thinking_budget_has_its_format() -> None:
    played = engine("<think>\nabcdef", "{}<|im_end|>")
    text = TextConfig(format=JsonObjectFormat())
    await ask(local(played), user("Hi"), thinking_budget=2, text=text)
    (_, before), (_, behind) = played.requests
    assert before.constraint is not None and "thought" in before.constraint.lark
    assert behind.constraint is not None and "thought" not in behind.constraint.lark


async def test_no_tokens_left_after_reasoning_means_truncation() -> None:
    played = engine("<think>\nabcdef")
    outcome = await ask(local(played), user("Hi"), thinking_budget=2, max_output_tokens=4)
    assert outcome.finish.reason == "length" and len(played.requests) == 1


async def test_resumed_reply_has_its_images_at_the_same_positions() -> None:
    seeing = engine("Hello!", capabilities=Capabilities(images="apart"))
    dialect = ChatDialect(seeing.card, seeing.tokenizer, images="apart")
    backend = LocalBackend(seeing, dialect)
    parts = (InputText(text="See: "), InputImage(image_url=data_url(png())))
    conversation = Conversation((Message(id="m", role="user", content=parts),))
    reply = await backend.prepare(conversation, Options())
    ids = reply.prompt_tokens.ids  # type: ignore[union-attr]
    async with aclosing(deltas_of(reply.resume(ResumePoint(ids, (72,))))) as deltas:
        assert [delta async for delta in deltas]
    ((request, _),) = seeing.requests
    assert request.ids == (*ids, 72) and [image.content for image in request.images] == [png()]
    with pytest.raises(CannotContinue, match="images"):
        reply.resume(ResumePoint((ids[0], *ids), (72,)))


async def test_image_processor_options_are_not_vllm_xargs() -> None:
    any_argument = local(engine(capabilities=Capabilities(extra=None)))
    await any_argument.prepare(Conversation((user("Hi"),)), Options(extra={"x": 1}))
    with pytest.raises(InvalidRequest) as refused:
        extra = {"mm_processor_kwargs": {"size": 1}}
        await any_argument.prepare(Conversation((user("Hi"),)), Options(extra=extra))
    assert refused.value.param == "mm_processor_kwargs"


@pytest.mark.parametrize("wanted", [True, False])
async def test_engine_learns_which_ids_do_not_depend_on_the_first_message(wanted: bool) -> None:
    played = engine(capabilities=Capabilities(constraints=True, uses_heads=wanted))
    backend = local(played)
    talk = (user("What is it like in Oslo?"), assistant("Cold."), user("And in Rome?"))
    for items in (talk[:1], talk):
        await ask_with(backend, "You know the weather.", *items)
    for prompt, _ in played.requests:
        head = b"".join(map(played.tokenizer.piece, prompt.ids[: prompt.head])).decode()
        assert head.endswith("weather.<|im_end|>\n<|im_start|>user\n") if wanted else not head
        rest = b"".join(map(played.tokenizer.piece, prompt.ids[prompt.past :])).decode()
        assert rest.startswith(("What is it", "And in")) or not wanted
    pasts = [prompt.past - prompt.head for prompt, _ in played.requests]
    assert pasts[0] == 0 and (pasts[1] > 0) == wanted


async def ask_with(backend: LocalBackend, instructions: str, *items: Item) -> None:
    reply = await backend.prepare(Conversation(items, instructions), Options(tools=(WEATHER,)))
    assert [delta async for delta in deltas_of(reply)]


async def test_heads_of_equal_requests_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    played = engine(capabilities=Capabilities(constraints=True, uses_heads=True))
    backend, rendered = local(played), list[Conversation]()
    render = ChatDialect.render

    def count(dialect: ChatDialect, conversation: Conversation, options: Options) -> Rendered:
        rendered.append(conversation)
        return render(dialect, conversation, options)

    monkeypatch.setattr(ChatDialect, "render", count)
    for city in ("Oslo", "Rome", "Lima"):
        await ask_with(backend, "You know the weather.", user(f"What is it like in {city}?"))
        await ask_with(backend, "", developer("You know the weather."), user(f"And in {city}?"))
    assert len(rendered) == 3 * 2 + 2
    await ask_with(backend, "You are a poet.", user("Hi"))
    assert len(rendered) == 3 * 2 + 2 + 2
    heads = {prompt.ids[: prompt.head] for prompt, _ in played.requests}
    assert len(heads) == 2


def developer(text: str) -> Message:
    return Message(id="", role="developer", content=(InputText(text=text),))


async def test_kept_head_is_found_again_if_the_template_states_another_date() -> None:
    played = engine(
        capabilities=Capabilities(uses_heads=True),
        template="{{ strftime_now('%j') }}" + TEMPLATE,
    )
    day = datetime(2026, 1, 2)
    dialect = ChatDialect(played.card, played.tokenizer, today=lambda: day)
    backend = LocalBackend(played, dialect)
    await ask(backend, user("What is it like in Oslo?"))
    day = datetime(2026, 12, 31)
    await ask(backend, user("What is it like in Oslo?"))
    pieces = played.tokenizer.piece
    heads = [b"".join(map(pieces, prompt.ids[: prompt.head])) for prompt, _ in played.requests]
    assert heads == [b"002<|im_start|>user\n", b"365<|im_start|>user\n"]


async def test_call_may_be_required_of_a_tool_that_a_later_item_declares() -> None:
    played = engine(CALL, capabilities=Capabilities(constraints=True, uses_heads=True))
    items = (user("Hi"), AdditionalTools(id="", tools=(WEATHER,)), user("What is it like in Oslo?"))
    options = Options(tool_choice=ToolChoice("required"))
    reply = await local(played).prepare(Conversation(items), options)
    assert [delta async for delta in deltas_of(reply)]


async def test_prompt_without_a_message_of_the_user_has_no_head() -> None:
    played = engine(capabilities=Capabilities(uses_heads=True))
    await ask(local(played), assistant("Hello."))
    assert played.requests[0][0].head == 0
