"""Compaction: what remains of a conversation, how it is requested, and how it continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options, ToolChoice
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.stream.event_grammar import check
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import items as it
from antiphon.wire.parsing.requests import parse_compact_request
from antiphon.wire.response import CompactedResponse, Response, Usage
from tests.backends.empty_batches import EmptyBatches
from tests.runs.scripted_service import create, events_of, make_service

SEAL = Encryptor([EncryptionKey(id="a", secret=b"a" * 32)])
TRIGGER = {"type": "compaction_trigger"}
SUMMARY_INSTRUCTIONS = "Stop here: this conversation is now compacted."
SUMMARY_MARK = "[The conversation up to here was compacted."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def texts_of(conversation: Conversation) -> list[str]:
    """The items that the model sees, each as a text."""
    return [text_of(item) for item in conversation.items]


def text_of(item: it.Item) -> str:
    if isinstance(item, it.Message | it.Reasoning):
        text = "".join(getattr(part, "text", "?") for part in item.content or ())
        return f"{item.role}: {text}" if isinstance(item, it.Message) else f"thinks: {text}"
    return f"{item.__struct_config__.tag} {getattr(item, 'call_id', '')}"


class Model:
    """A backend that writes ``summary`` if a summary is requested, and otherwise answers. Each
    character counts as a token."""

    def __init__(
        self,
        summary: str | Sequence[Delta] = "SUMMARY",
        size: int | None = 100_000,
        wait_s: float = 0,
    ) -> None:
        self.summary = summary
        self.backend = ScriptedBackend(self._reply, context_size=size, wait_s=wait_s)
        self._prepare = self.backend.prepare
        self.backend.prepare = self.prepare  # type: ignore[method-assign]
        self.size = size

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        tokens = len("".join(texts_of(conversation))) + len(conversation.instructions or "")
        tokens += sum(len(getattr(item, "output", "")) for item in conversation.items)
        if self.size is not None and tokens >= self.size:
            raise InvalidRequest("too long", param="input", code="context_length_exceeded")
        reply = await self._prepare(conversation, options)
        reply.input_tokens = tokens
        return reply

    def _reply(self, conversation: Conversation, options: Options) -> str | Sequence[Delta]:
        return self.summary if self.is_summary_request(conversation) else "ANSWER"

    @staticmethod
    def is_summary_request(conversation: Conversation) -> bool:
        """Whether the model is to write a summary."""
        return bool(conversation.items) and SUMMARY_INSTRUCTIONS in text_of(conversation.items[-1])

    def make_service(self, **policy: Any) -> Service:
        return make_service(self.backend, MemoryStore(), seal=SEAL, **policy)

    @property
    def answered_texts(self) -> list[str]:
        """The texts of the conversation that the model answered last."""
        requests = reversed(self.backend.requests)
        return texts_of(next(c for c, _ in requests if not self.is_summary_request(c)))

    @property
    def summary_request(self) -> tuple[list[str], Options]:
        """The texts that the model summarized last, and the options."""
        found = next(
            (c, o) for c, o in reversed(self.backend.requests) if self.is_summary_request(c)
        )
        return texts_of(found[0])[:-1], found[1]


async def respond(service: Service, **fields: Any) -> Response:
    return await (await create(service, **fields)).drive()


async def compact(service: Service, tenant: str = "t", **fields: Any) -> CompactedResponse:
    compaction = await service.compact(
        tenant, parse_compact_request(json.dumps({"model": "scripted", **fields}).encode())
    )
    response = await compaction.run.drive()
    assert response.status == "completed", response.error
    return compaction.result


def to_wire(items: Sequence[it.Item]) -> list[Any]:
    """Return items as a client receives and sends them."""
    import msgspec

    return json.loads(msgspec.json.encode(items))


# --- the trigger ---------------------------------------------------------------------------------


async def test_trigger_creates_one_compaction_item_to_continue_from() -> None:
    model = Model()
    service = model.make_service()
    talk = [user("Name's Ann."), assistant("Hello Ann."), user("Old."), assistant("Yes."), TRIGGER]
    run = await create(service, input=talk, store=False)
    events = await events_of(run)
    check(events)
    assert [event.__struct_config__.tag for event in events][2:5] == [
        "response.output_item.added",
        "response.compaction.compacting",
        "response.output_item.done",
    ]
    (item,) = run.response.output
    assert isinstance(item, it.Compaction) and item.id.startswith("cmp_")
    assert "SUMMARY" not in item.encrypted_content
    assert model.summary_request[0] == ["user: Name's Ann.", "assistant: Hello Ann.", "user: Old.",
                                   "assistant: Yes."]  # fmt: skip
    await respond(service, input=[*to_wire([item]), user("And?")])
    first, second, summarized_texts, last = model.answered_texts
    assert [first, second, last] == ["user: Name's Ann.", "user: Old.", "user: And?"]
    assert summarized_texts.startswith(f"user: {SUMMARY_MARK}") and summarized_texts.endswith(
        "SUMMARY"
    )


async def test_summary_is_generated_without_tools_and_reasoning() -> None:
    model = Model(size=8000)
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    fields = {
        "instructions": "Be kind.",
        "tools": tools,
        "tool_choice": "required",
        "text": {"format": {"type": "json_object"}},
        "max_output_tokens": 1,
        "temperature": 0.5,
    }
    await respond(model.make_service(), input=[user("a " * 8000), TRIGGER], **fields)
    conversation, options = model.backend.requests[-1]
    assert conversation.instructions == "Be kind."
    assert options.tools == () and options.tool_choice == ToolChoice()
    assert options.text.format.__struct_config__.tag == "text"
    assert options.max_output_tokens == 2000 and options.temperature == 0.5
    assert options.reasoning is not None and options.reasoning.effort == "none"


async def test_summary_is_not_held_to_the_form_of_the_answer() -> None:
    """A grammar, a stop string or ``ignore_eos`` describe the answer, not the summary."""
    model = Model(size=8000)
    fields = {
        "structured_outputs": {"regex": "yes|no"},
        "stop": ["."],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "thinking_token_budget": 5,
    }
    await respond(model.make_service(), input=[user("a " * 8000), TRIGGER], **fields)
    _, options = model.backend.requests[-1]
    assert options.guide is None and options.thinking_budget is None
    assert options.stop == () and not options.include_stop_text and not options.ignore_eos


async def test_summary_of_short_messages_is_short() -> None:
    model = Model(size=8000)
    await respond(model.make_service(), input=[user("a"), user("b"), TRIGGER])
    conversation, options = model.backend.requests[-1]
    assert options.max_output_tokens == 256
    assert "at most 128 words" in str(conversation.items[-1])


async def test_chain_continues_after_its_compaction() -> None:
    model = Model()
    service = model.make_service()
    first = await respond(service, input="one")
    second = await respond(service, input=[TRIGGER], previous_response_id=first.id)
    third = await respond(service, input="two", previous_response_id=second.id)
    assert [text[:9] for text in model.answered_texts] == ["user: one", "user: [Th", "user: two"]
    fourth = await respond(service, input=[TRIGGER], previous_response_id=third.id)
    summarized_texts = model.summary_request[0]
    assert [text[:9] for text in summarized_texts] == [
        "user: one",
        "user: [Th",
        "user: two",
        "assistant",
    ]
    assert "SUMMARY" in summarized_texts[1]  # what is known of the first past is not lost
    await respond(service, input="three", previous_response_id=fourth.id)
    assert [text[:9] for text in model.answered_texts] == [
        "user: one",
        "user: two",
        "user: [Th",
        "user: thr",
    ]


async def test_persistent_items_survive_compaction() -> None:
    model = Model()
    service = model.make_service()
    rule = {"role": "developer", "content": "Never swear."}
    first = await respond(service, input=[rule, user("a")])
    second = await respond(service, input=[TRIGGER], previous_response_id=first.id)
    await respond(service, input="b", previous_response_id=second.id)
    assert model.answered_texts[0] == "developer: Never swear."


async def test_empty_conversation_cannot_be_compacted() -> None:
    with pytest.raises(InvalidRequest, match="nothing to compact"):
        await respond(Model().make_service(), input=[TRIGGER])


async def test_old_trigger_in_the_items_is_ignored() -> None:
    model = Model()
    service = model.make_service()
    await respond(service, input=[user("a"), TRIGGER])
    response = await respond(service, input=[user("b")])
    assert isinstance(response.output[0], it.Message)


# --- calls ---------------------------------------------------------------------------------------


async def test_waiting_call_is_visible_with_its_later_output() -> None:
    model = Model()
    service = model.make_service()
    talk = [user("a"), call("c0"), output("c0"), call("c1"), call("c2"), TRIGGER]
    response = await respond(service, input=talk)
    item = to_wire(response.output)
    await respond(service, input=[*item, output("c1"), output("c2")])
    assert model.answered_texts[2:] == [
        "function_call c1",
        "function_call c2",
        "function_call_output c1",
        "function_call_output c2",
    ]
    await respond(service, input=[*item, user("never mind")])
    assert [text for text in model.answered_texts if "call" in text] == []
    with pytest.raises(InvalidRequest, match="No tool call found"):
        await respond(service, input=[*item, output("c0")])


async def test_call_sent_again_by_the_client_is_visible_once() -> None:
    model = Model()
    service = model.make_service()
    response = await respond(service, input=[user("a"), call("c1"), TRIGGER])
    await respond(service, input=[*to_wire(response.output), call("c1"), output("c1")])
    assert [text for text in model.answered_texts if "c1" in text] == [
        "function_call c1",
        "function_call_output c1",
    ]


# --- what is kept of the user --------------------------------------------------------------------


async def test_user_messages_are_retained_with_and_without_client_history() -> None:
    model = Model()
    service = model.make_service()
    talk = [user("one"), assistant("1"), user("two"), assistant("2")]
    item = to_wire((await respond(service, input=[*talk, TRIGGER])).output)
    expected = ["user: one", "user: two"]
    for before in (talk, [user("one"), user("two")], [user("two")], []):
        await respond(service, input=[*before, *item, user("go on")])
        assert model.answered_texts[:2] == expected
        assert len(model.answered_texts) == 4


async def test_only_latest_user_messages_are_retained() -> None:
    model = Model(size=1000)  # a quarter of it for the user: 250 tokens, 3 bytes each
    service = model.make_service()
    talk = [user(f"{number:03}" + "x" * 97) for number in range(8)]
    item = to_wire((await respond(service, input=[*talk, TRIGGER])).output)
    for before in (talk, []):
        await respond(service, input=[*before, *item])
        numbers = [text[6:9] for text in model.answered_texts[:-1]]
        assert numbers == ["001", "002", "003", "004", "005", "006", "007"]


async def test_long_user_message_is_truncated_in_the_middle() -> None:
    model = Model(size=3000)
    service = model.make_service()
    long = "BEGIN" + "x" * 2 * 2250 + "END"
    model.size = 100_000
    item = to_wire((await respond(service, input=[user(long), TRIGGER])).output)
    model.backend.context_size = 3000
    await respond(service, input=item)
    first, summarized_texts = model.answered_texts
    assert first.startswith("user: BEGIN") and first.endswith("END")
    assert SUMMARY_MARK in summarized_texts


async def test_empty_summary_gives_a_valid_compaction_item() -> None:
    model = Model(summary=[Finish("stop", Usage())])
    service = model.make_service()
    response = await respond(service, input=[user("one"), assistant("1"), TRIGGER])
    assert response.status == "completed"
    await respond(service, input=[*to_wire(response.output), user("two")])
    assert model.answered_texts[0] == "user: one"
    assert "No summary could be written" in model.answered_texts[1]
    assert model.answered_texts[2] == "user: two"


async def test_reasoning_is_not_part_of_the_summary() -> None:
    deltas: list[Delta] = [
        Open(it.Reasoning(summary=())),
        Text("hmm"),
        Close(),
        Open(it.Message(role="assistant", content=())),
        Text("S"),
        Close(),
    ]
    model = Model(summary=deltas)
    service = model.make_service()
    response = await respond(service, input=[user("a"), TRIGGER])
    await respond(service, input=[*to_wire(response.output), user("b")])
    assert model.answered_texts[1].endswith("\n\nS")


# --- a conversation that is too long -------------------------------------------------------------


async def test_oldest_items_are_left_out_of_a_summary_that_does_not_fit() -> None:
    model = Model(size=4000)
    service = model.make_service()
    old = [call("c0"), output("c0", "o" * 100)]
    talk = [*old, *(user(f"{number} " + "x" * 300) for number in range(20)), TRIGGER]
    response = await respond(service, input=talk)
    assert response.status == "completed"
    summarized_texts, options = model.summary_request
    assert summarized_texts[-1].startswith("user: 19 ")
    assert not any("c0" in text for text in summarized_texts)
    assert len("".join(summarized_texts)) + (options.max_output_tokens or 0) < 4000
    assert len(summarized_texts) > 3  # and no more than have to be


async def test_context_length_error_if_not_even_the_summary_fits() -> None:
    model = Model(size=1000)
    with pytest.raises(InvalidRequest) as raised:
        await respond(model.make_service(), input=[user("a"), TRIGGER], instructions="x" * 999)
    assert raised.value.code == "context_length_exceeded"


# --- by itself -----------------------------------------------------------------------------------


async def test_compact_endpoint_compacts_input_items() -> None:
    model = Model()
    service = model.make_service()
    talk = [
        {"role": "developer", "content": "rule"},
        user("one"),
        assistant("1"),
        {**user("two"), "id": "msg_mine"},
        call("c1"),
        output("c1"),
    ]
    window = await compact(service, input=talk)
    assert [item.__struct_config__.tag for item in window.output] == ["message"] * 3 + [
        "compaction"
    ]
    assert [text_of(item) for item in window.output[:3]] == ["developer: rule", "user: one",
                                                           "user: two"]  # fmt: skip
    assert window.output[2].id == "msg_mine"
    assert window.object == "response.compaction" and window.usage.total_tokens > 0
    await respond(service, input=[*to_wire(window.output), user("three")])
    assert [text[:9] for text in model.answered_texts] == ["developer", "user: one", "user: two",
                                                     "user: [Th", "user: thr"]  # fmt: skip


async def test_compact_endpoint_accepts_a_previous_response_alone() -> None:
    model = Model()
    service = model.make_service()
    first = await respond(service, input="one")
    window = await compact(service, previous_response_id=first.id)
    assert [text_of(item) for item in window.output[:-1]] == ["user: one"]
    with pytest.raises(InvalidRequest, match="not found"):
        await compact(service, previous_response_id=window.id)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "a"}, "model", "missing_required_parameter"),
        ({"model": None, "input": "a"}, "model", "missing_required_parameter"),
        ({"model": "m"}, "input", "missing_required_parameter"),
        ({"model": "m", "input": []}, "input", "empty_array"),
        ({"model": "m", "input": 1}, "input", "invalid_type"),
        ({"model": "m", "input": "a", "instructions": 1}, "instructions", "invalid_type"),
        ({"model": "m", "input": [{"type": "x"}]}, "input[0].type", "invalid_value"),
        ({"model": "m", "input": [TRIGGER, user("a")]}, "input[0]", "invalid_value"),
        ({"model": "m", "messages": []}, "messages", "unsupported_parameter"),
    ],
)
def test_invalid_compact_request_is_rejected(body: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_compact_request(json.dumps(body).encode())
    assert (raised.value.param, raised.value.code) == (param, code)


# --- during a response --------------------------------------------------------------------------

MANAGED = [{"type": "compaction", "compact_threshold": 1000}]


async def test_compaction_precedes_the_answer_above_the_threshold() -> None:
    model = Model(summary="S" * 50)
    service = model.make_service()
    talk = [user("early"), assistant("x" * 1200), user("now?")]
    run = await create(service, input=talk, context_management=MANAGED)
    events = await events_of(run)
    check(events)
    compaction, message = run.response.output
    assert isinstance(compaction, it.Compaction) and isinstance(message, it.Message)
    assert [text[:9] for text in model.answered_texts] == ["user: ear", "user: [Th", "user: now"]
    summarized_texts, _ = model.summary_request
    assert summarized_texts == [
        "user: early",
        "assistant: " + "x" * 1200,
    ]  # the question is not summarized
    assert run.response.usage is not None
    assert run.response.usage.input_tokens > 1200 + len("".join(model.answered_texts))
    assert run.response.usage.output_tokens == 1 + 1
    assert to_wire(run.response.context_management) == MANAGED  # type: ignore[arg-type]
    again = await respond(
        service, input="more", previous_response_id=run.response.id, context_management=MANAGED
    )
    assert [item.__struct_config__.tag for item in again.output] == ["message"]
    assert [text[:9] for text in model.answered_texts] == ["user: ear", "user: [Th", "user: now",
                                                     "assistant", "user: mor"]  # fmt: skip


async def test_answer_after_a_compaction_may_have_empty_batches() -> None:
    """A reply has an empty batch if its model is loaded on demand or if it is repeated."""
    backend = EmptyBatches(Model().backend)
    service = make_service(backend, seal=SEAL)
    talk = [user("early"), assistant("x" * 1200), user("now?")]
    response = await respond(service, input=talk, context_management=MANAGED)
    assert response.status == "completed", response.error
    assert [item.__struct_config__.tag for item in response.output] == ["compaction", "message"]


async def test_no_compaction_below_the_threshold() -> None:
    model = Model()
    response = await respond(model.make_service(), input="short", context_management=MANAGED)
    assert [item.__struct_config__.tag for item in response.output] == ["message"]
    assert len(model.backend.requests) == 1


async def test_conversation_longer_than_the_context_is_compacted() -> None:
    model = Model(size=2000)
    service = model.make_service()
    talk = [user("a"), assistant("x" * 1900), user("b " * 50), assistant("1"), user("c")]
    for fields in ({}, {"truncation": "auto"}):
        managed = [{"type": "compaction"}]
        response = await respond(service, input=talk, context_management=managed, **fields)
        tags = [item.__struct_config__.tag for item in response.output]
        assert tags == ["compaction", "message"]
    with pytest.raises(InvalidRequest):
        await respond(service, input=talk)


async def test_no_compaction_if_it_would_not_shorten_the_prompt() -> None:
    model = Model(size=1600)
    service = model.make_service()
    talk = [user("a"), assistant("1"), user("b")]
    fields = {"instructions": "x" * 1300, "context_management": [{"type": "compaction"}]}
    response = await respond(service, input=talk, **fields)
    assert [item.__struct_config__.tag for item in response.output] == ["message"]
    model.size = 1100
    with pytest.raises(InvalidRequest) as raised:
        await respond(service, input=talk, **fields)
    assert raised.value.code == "context_length_exceeded"


async def test_threshold_below_what_stays_is_rejected() -> None:
    talk = [user("a"), assistant("1"), user("b")]
    managed = [{"type": "compaction"}, *MANAGED]
    for fields in (
        {"input": talk, "instructions": "x" * 1001},
        {"input": [*talk, user("q" * 1001)]},
        {"input": [user("q" * 1200)]},
        {"input": [{"role": "developer", "content": "x" * 1200}, *talk]},
    ):
        for size in (100_000, 1100):
            model = Model(size=size)
            with pytest.raises(InvalidRequest) as raised:
                await respond(model.make_service(), context_management=managed, **fields)
            assert raised.value.param == "context_management[1].compact_threshold"


@pytest.mark.parametrize(
    "texts",
    [
        ["x" * 200] * 8,  # many short messages
        ["x" * 5000],  # one long one
        ["x" * 5000, "y" * 5000, "z" * 20],
        ["x" * 900, "y" * 120],
    ],
)
async def test_long_messages_of_the_user_are_compacted(texts: list[str]) -> None:
    model = Model()
    service = model.make_service()
    talk = [entry for text in texts for entry in (user(text), assistant("ok"))]
    question = "What now? " + "q" * 290
    response = await respond(service, input=[*talk, user(question)], context_management=MANAGED)
    assert [item.__struct_config__.tag for item in response.output] == ["compaction", "message"]
    assert model.answered_texts[-1] == f"user: {question}", "the question stays as it is"
    assert len("".join(model.answered_texts)) <= 1000
    again = await respond(
        service, input="more", previous_response_id=response.id, context_management=MANAGED
    )
    assert [item.__struct_config__.tag for item in again.output] == ["message"]
    assert len("".join(model.answered_texts)) <= 1000, "the next turn keeps no more"
    sent = [*talk, user(question), *to_wire(response.output), user("more")]
    again = await respond(service, input=sent, store=False, context_management=MANAGED)
    assert [item.__struct_config__.tag for item in again.output] == ["message"]


async def test_recent_items_do_not_separate_calls_from_outputs() -> None:
    model = Model()
    service = model.make_service()
    calls = [entry for n in range(9) for entry in (call(f"c{n}"), output(f"c{n}", "y" * 150))]
    response = await respond(
        service, input=[user("go"), *calls, user("?")], context_management=MANAGED
    )
    assert isinstance(response.output[0], it.Compaction)
    left = [text.split()[1] for text in model.answered_texts if text.startswith("function_call ")]
    answered_too = [
        text.split()[1] for text in model.answered_texts if text.startswith("function_call_o")
    ]
    assert left == answered_too and left and len(left) < 9
    assert left == [f"c{n}" for n in range(9 - len(left), 9)]  # the newest


async def test_failed_answer_after_a_compaction_fails_the_response() -> None:
    model = Model()
    service = model.make_service()
    prepare = model.prepare
    prepared = 0

    async def fails(conversation: Conversation, options: Options) -> Any:
        nonlocal prepared
        prepared += 1
        if prepared == 4:  # the question, the bare rest, the summary, the answer
            raise InvalidRequest("too long", code="context_length_exceeded")
        return await prepare(conversation, options)

    model.backend.prepare = fails  # type: ignore[method-assign]
    talk = [user("a"), assistant("x" * 1200), user("b")]
    response = await respond(service, input=talk, context_management=MANAGED)
    assert response.status == "failed" and response.error is not None
    assert response.error.code == "context_length_exceeded"


async def test_disconnected_reader_stops_the_summary() -> None:
    model = Model(summary="one two three", wait_s=3600)
    run = await create(model.make_service(), input=[user("a"), TRIGGER])
    driving = asyncio.create_task(run.drive())
    for _ in range(50):  # until the model writes
        await asyncio.sleep(0)
    driving.cancel()
    await asyncio.wait([driving], timeout=60)
    assert model.backend.aborted == 1


# --- thinking, and what cannot be opened ---------------------------------------------------------

THOUGHT: list[Delta] = [
    Open(it.Reasoning(summary=())),
    Text("I think."),
    Close(),
    Open(it.Message(role="assistant", content=())),
    Text("Hi"),
    Close(),
]
INCLUDE = ["reasoning.encrypted_content"]


@pytest.mark.parametrize(
    ("fields", "sealed"),
    [
        ({}, False),
        ({"include": INCLUDE}, True),
        ({"store": False}, True),
        ({"store": False, "include": INCLUDE}, True),
    ],
)
async def test_reasoning_is_encrypted_if_requested_or_unstored(fields: Any, sealed: bool) -> None:
    service = make_service(ScriptedBackend([THOUGHT]), MemoryStore(), seal=SEAL)
    run = await create(service, **fields)
    events = await events_of(run)
    item = run.response.output[0]
    assert isinstance(item, it.Reasoning)
    assert bool(item.encrypted_content) is sealed
    done = next(e for e in events if e.__struct_config__.tag == "response.output_item.done")
    assert done.item == item  # type: ignore[attr-defined]
    if run.response.store:
        assert (await service.retrieve("t", run.id)).output[0] == item
    if sealed:
        opened = TenantSealer(SEAL, "t").decrypt_reasoning(
            it.Reasoning(encrypted_content=item.encrypted_content)
        )
        assert opened.content == item.content


async def test_truncated_reasoning_is_encrypted() -> None:
    cut = [Open(it.Reasoning(summary=())), Text("I th"), Finish("length", Usage())]
    response = await respond(make_service(ScriptedBackend([cut]), seal=SEAL), store=False)
    (item,) = response.output
    assert isinstance(item, it.Reasoning) and item.status == "incomplete"
    assert item.encrypted_content and response.status == "incomplete"


async def respond_to_reasoning(service: Service, *items: Any, **fields: Any) -> Response:
    return await respond(service, input=[user("a"), *items, user("b")], **fields)


async def test_replica_with_the_key_decrypts_reasoning() -> None:
    one = await respond(make_service(ScriptedBackend([THOUGHT]), seal=SEAL), store=False)
    (sealed, message) = to_wire(one.output)
    del sealed["content"]
    backend = ScriptedBackend(["x"])
    await respond_to_reasoning(make_service(backend, seal=SEAL), sealed, message)
    assert texts_of(backend.requests[-1][0])[1] == "thinks: I think."
    given = {**sealed, "content": [{"type": "reasoning_text", "text": "Given."}]}
    await respond_to_reasoning(make_service(backend, seal=SEAL), given, message)
    assert texts_of(backend.requests[-1][0])[1] == "thinks: Given."


def damaged(text: str) -> str:
    return text[:-6] + ("AAAAAA" if text[-6:] != "AAAAAA" else "BBBBBB")


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
@pytest.mark.parametrize(
    "break_it", [damaged, lambda text: "gAAAAABo…", lambda text: text[:40]], ids=["damaged",
    "foreign", "cut"],
)  # fmt: skip
async def test_policy_for_undecryptable_items(kind: str, break_it: Callable[[str], str]) -> None:
    sealed = TenantSealer(SEAL, "t").encrypted_reasoning(
        it.Reasoning(content=(it.ReasoningText(text="t"),))
    )
    text = break_it(str(sealed["encrypted_content"]))
    item = {"type": kind, "id": "it_1", "encrypted_content": text}
    backend = ScriptedBackend(["x"])
    with pytest.raises(InvalidRequest) as raised:
        service = make_service(backend, seal=SEAL, undecryptable_items="refuse")
        await respond_to_reasoning(service, item)
    assert raised.value.param == "input[1].encrypted_content"
    assert raised.value.code == "invalid_encrypted_content"
    response = await respond_to_reasoning(make_service(backend, seal=SEAL), item)
    assert texts_of(backend.requests[-1][0]) == ["user: a", "user: b"]
    (removed,) = to_wire(response.input_transformations)  # type: ignore[arg-type]
    assert removed == {
        "id": "it_1",
        "action": "removed",
        "type": "reasoning",
        **({} if kind == "reasoning" else {"item_type": kind}),
        "reason": "organization_mismatch",
    }


async def test_other_tenant_or_purpose_cannot_decrypt() -> None:
    model = Model()
    service = model.make_service(undecryptable_items="refuse")
    compaction = to_wire((await respond(service, input=[user("a"), TRIGGER])).output)
    for item in (compaction[0], {**compaction[0], "type": "reasoning"}):
        tenant = "other" if item["type"] == "compaction" else "t"
        with pytest.raises(InvalidRequest) as raised:
            await create(service, tenant, input=[item, user("b")])
        assert raised.value.param == "input[0].encrypted_content"


async def test_reasoning_summary_stays_visible_without_its_content() -> None:
    backend = ScriptedBackend(["x"])
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "in short"}],
        "encrypted_content": "no",
    }
    await respond_to_reasoning(make_service(backend, seal=SEAL), item)
    stored = backend.requests[-1][0].items[1]
    assert isinstance(stored, it.Reasoning) and stored.summary[0].text == "in short"


async def test_undecryptable_compaction_falls_back_to_the_one_before() -> None:
    model = Model()
    service = model.make_service()
    (item,) = to_wire((await respond(service, input=[user("a"), TRIGGER])).output)
    broken = {**item, "id": "cmp_x", "encrypted_content": "no"}
    response = await respond(service, input=[item, user("b"), broken, user("c")])
    assert [text[:9] for text in model.answered_texts] == [
        "user: a",
        "user: [Th",
        "user: b",
        "user: c",
    ]
    assert len(response.input_transformations) == 1  # type: ignore[arg-type]
