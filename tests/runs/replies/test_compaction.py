"""Compaction: what is left of a conversation, who asked for it, and what goes on from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from antiphon.backends.scripted import ScriptedBackend
from antiphon.conversation import Conversation, Options, ToolChoice
from antiphon.errors import InvalidRequest
from antiphon.runs.history.encrypted_items import TenantSealer
from antiphon.runs.service import Service
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.memory.store import MemoryStore
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.stream.event_grammar import check
from antiphon.wire import items as it
from antiphon.wire.parsing.requests import parse_compact_request
from antiphon.wire.response import CompactedResponse, Response, Usage
from tests.runs.served import create, events_of, service

SEAL = Encryptor([EncryptionKey(id="a", secret=b"a" * 32)])
TRIGGER = {"type": "compaction_trigger"}
ASKED = "Stop here: this conversation is now compacted."
MARK = "[The conversation up to here was compacted."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def seen(conversation: Conversation) -> list[str]:
    """What the model is shown, a text an item."""
    return [shown(item) for item in conversation.items]


def shown(item: it.Item) -> str:
    if isinstance(item, it.Message | it.Reasoning):
        text = "".join(getattr(part, "text", "?") for part in item.content or ())
        return f"{item.role}: {text}" if isinstance(item, it.Message) else f"thinks: {text}"
    return f"{item.__struct_config__.tag} {getattr(item, 'call_id', '')}"


class Model:
    """A backend that writes ``summary`` when asked for one, and otherwise answers. What it is shown
    counts a token a character."""

    def __init__(self, summary: str = "SUMMARY", size: int | None = 100_000) -> None:
        self.summary = summary
        self.backend = ScriptedBackend(self._reply, context_size=size)
        self._prepare = self.backend.prepare
        self.backend.prepare = self.prepare  # type: ignore[method-assign]
        self.size = size

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        tokens = len("".join(seen(conversation))) + len(conversation.instructions or "")
        tokens += sum(len(getattr(item, "output", "")) for item in conversation.items)
        if self.size is not None and tokens >= self.size:
            raise InvalidRequest("too long", param="input", code="context_length_exceeded")
        reply = await self._prepare(conversation, options)
        reply.input_tokens = tokens
        return reply

    def _reply(self, conversation: Conversation, options: Options) -> str | Sequence[Delta]:
        return self.summary if self.asked(conversation) else "ANSWER"

    @staticmethod
    def asked(conversation: Conversation) -> bool:
        """It was to write a summary."""
        return bool(conversation.items) and ASKED in shown(conversation.items[-1])

    def served(self, **policy: Any) -> Service:
        return service(self.backend, MemoryStore(), seal=SEAL, **policy)

    @property
    def answered(self) -> list[str]:
        """What it was shown when it last answered."""
        asked = (c for c, _ in reversed(self.backend.requests) if not self.asked(c))
        return seen(next(asked))

    @property
    def summarised(self) -> tuple[list[str], Options]:
        """What it last was to summarise, and how it was asked."""
        found = next((c, o) for c, o in reversed(self.backend.requests) if self.asked(c))
        return seen(found[0])[:-1], found[1]


async def answered(served: Service, **fields: Any) -> Response:
    return await (await create(served, **fields)).drive()


async def compacted(served: Service, tenant: str = "t", **fields: Any) -> CompactedResponse:
    asked = await served.compact(
        tenant, parse_compact_request(json.dumps({"model": "scripted", **fields}).encode())
    )
    response = await asked.run.drive()
    assert response.status == "completed", response.error
    return asked.result


def wired(items: Sequence[it.Item]) -> list[Any]:
    """Items as a client gets and sends them."""
    import msgspec

    return json.loads(msgspec.json.encode(items))


# --- the trigger ---------------------------------------------------------------------------------


async def test_a_trigger_makes_exactly_one_compaction_item_that_is_gone_on_from() -> None:
    model = Model()
    served = model.served()
    talk = [user("Name's Ann."), assistant("Hello Ann."), user("Old."), assistant("Yes."), TRIGGER]
    run = await create(served, input=talk, store=False)
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
    assert model.summarised[0] == ["user: Name's Ann.", "assistant: Hello Ann.", "user: Old.",
                                   "assistant: Yes."]  # fmt: skip
    await answered(served, input=[*wired([item]), user("And?")])
    first, second, told, last = model.answered
    assert [first, second, last] == ["user: Name's Ann.", "user: Old.", "user: And?"]
    assert told.startswith(f"user: {MARK}") and told.endswith("SUMMARY")


async def test_a_summary_is_asked_for_plainly() -> None:
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
    await answered(model.served(), input=[user("a"), TRIGGER], **fields)
    conversation, options = model.backend.requests[-1]
    assert conversation.instructions == "Be kind."
    assert options.tools == () and options.tool_choice == ToolChoice()
    assert options.text.format.__struct_config__.tag == "text"
    assert options.max_output_tokens == 2000 and options.temperature == 0.5
    assert options.reasoning is not None and options.reasoning.effort == "none"


async def test_a_chain_goes_on_behind_its_compaction() -> None:
    model = Model()
    served = model.served()
    first = await answered(served, input="one")
    second = await answered(served, input=[TRIGGER], previous_response_id=first.id)
    third = await answered(served, input="two", previous_response_id=second.id)
    assert [text[:9] for text in model.answered] == ["user: one", "user: [Th", "user: two"]
    fourth = await answered(served, input=[TRIGGER], previous_response_id=third.id)
    told = model.summarised[0]
    assert [text[:9] for text in told] == ["user: one", "user: [Th", "user: two", "assistant"]
    assert "SUMMARY" in told[1]  # what is known of the first past is not lost
    await answered(served, input="three", previous_response_id=fourth.id)
    assert [text[:9] for text in model.answered] == [
        "user: one",
        "user: two",
        "user: [Th",
        "user: thr",
    ]


async def test_what_holds_for_the_conversation_outlives_its_compaction() -> None:
    model = Model()
    served = model.served()
    rule = {"role": "developer", "content": "Never swear."}
    first = await answered(served, input=[rule, user("a")])
    second = await answered(served, input=[TRIGGER], previous_response_id=first.id)
    await answered(served, input="b", previous_response_id=second.id)
    assert model.answered[0] == "developer: Never swear."


async def test_there_must_be_something_to_compact() -> None:
    with pytest.raises(InvalidRequest, match="nothing to compact"):
        await answered(Model().served(), input=[TRIGGER])


async def test_a_trigger_in_a_conversation_item_list_asks_for_nothing_later() -> None:
    model = Model()
    served = model.served()
    await answered(served, input=[user("a"), TRIGGER])
    response = await answered(served, input=[user("b")])
    assert isinstance(response.output[0], it.Message)


# --- calls ---------------------------------------------------------------------------------------


async def test_a_call_that_waits_for_its_output_is_shown_with_it_when_it_comes() -> None:
    model = Model()
    served = model.served()
    talk = [user("a"), call("c0"), output("c0"), call("c1"), call("c2"), TRIGGER]
    response = await answered(served, input=talk)
    item = wired(response.output)
    await answered(served, input=[*item, output("c1"), output("c2")])
    assert model.answered[2:] == [
        "function_call c1",
        "function_call c2",
        "function_call_output c1",
        "function_call_output c2",
    ]
    await answered(served, input=[*item, user("never mind")])
    assert [text for text in model.answered if "call" in text] == []
    with pytest.raises(InvalidRequest, match="No tool call found"):
        await answered(served, input=[*item, output("c0")])


async def test_a_call_the_client_sends_itself_is_shown_once() -> None:
    model = Model()
    served = model.served()
    response = await answered(served, input=[user("a"), call("c1"), TRIGGER])
    await answered(served, input=[*wired(response.output), call("c1"), output("c1")])
    assert [text for text in model.answered if "c1" in text] == [
        "function_call c1",
        "function_call_output c1",
    ]


# --- what is kept of the user --------------------------------------------------------------------


async def test_the_user_is_kept_whether_the_client_sends_the_past_or_not() -> None:
    model = Model()
    served = model.served()
    talk = [user("one"), assistant("1"), user("two"), assistant("2")]
    item = wired((await answered(served, input=[*talk, TRIGGER])).output)
    expected = ["user: one", "user: two"]
    for before in (talk, [user("one"), user("two")], [user("two")], []):
        await answered(served, input=[*before, *item, user("go on")])
        assert model.answered[:2] == expected
        assert len(model.answered) == 4


async def test_only_the_users_latest_words_are_kept_where_there_are_many() -> None:
    model = Model(size=1000)  # a quarter of it for the user: 250 tokens, 3 bytes each
    served = model.served()
    talk = [user(f"{number:03}" + "x" * 97) for number in range(8)]
    item = wired((await answered(served, input=[*talk, TRIGGER])).output)
    for before in (talk, []):
        await answered(served, input=[*before, *item])
        assert [text[6:9] for text in model.answered[:-1]] == ["001", "002", "003", "004", "005",
                                                               "006", "007"]  # fmt: skip


async def test_words_that_are_too_long_keep_their_ends() -> None:
    model = Model(size=3000)
    served = model.served()
    long = "BEGIN" + "x" * 2 * 2250 + "END"
    model.size = 100_000
    item = wired((await answered(served, input=[user(long), TRIGGER])).output)
    model.backend.context_size = 3000
    await answered(served, input=item)
    first, told = model.answered
    assert first.startswith("user: BEGIN") and first.endswith("END")
    assert MARK in told


async def test_a_summary_that_is_empty_leaves_a_valid_item_and_the_user() -> None:
    model = Model(summary="")
    model.backend._scripts = lambda c, o: [Finish("stop", Usage())]
    served = model.served()
    response = await answered(served, input=[user("one"), assistant("1"), TRIGGER])
    assert response.status == "completed"
    await answered(served, input=[*wired(response.output), user("two")])
    assert model.answered[0] == "user: one"
    assert "No summary could be written" in model.answered[1]
    assert model.answered[2] == "user: two"


async def test_thinking_is_no_part_of_a_summary() -> None:
    model = Model()
    deltas: list[Delta] = [
        Open(it.Reasoning(summary=())),
        Text("hmm"),
        Close(),
        Open(it.Message(role="assistant", content=())),
        Text("S"),
        Close(),
    ]
    model.backend._scripts = lambda c, o: deltas if model.asked(c) else "A"
    served = model.served()
    response = await answered(served, input=[user("a"), TRIGGER])
    await answered(served, input=[*wired(response.output), user("b")])
    assert model.answered[1].endswith("\n\nS")


# --- a conversation that is too long -------------------------------------------------------------


async def test_the_oldest_are_left_out_of_what_the_context_cannot_hold() -> None:
    model = Model(size=4000)
    served = model.served()
    old = [call("c0"), output("c0", "o" * 100)]
    talk = [*old, *(user(f"{number} " + "x" * 300) for number in range(20)), TRIGGER]
    response = await answered(served, input=talk)
    assert response.status == "completed"
    told, options = model.summarised
    assert told[-1].startswith("user: 19 ")
    assert not any("c0" in text for text in told)
    assert len("".join(told)) + (options.max_output_tokens or 0) < 4000
    assert len(told) > 3  # and no more than have to be


async def test_what_cannot_even_be_summarised_is_too_long() -> None:
    model = Model(size=1000)
    with pytest.raises(InvalidRequest) as raised:
        await answered(model.served(), input=[user("a"), TRIGGER], instructions="x" * 999)
    assert raised.value.code == "context_length_exceeded"


# --- by itself -----------------------------------------------------------------------------------


async def test_a_conversation_is_compacted_by_itself() -> None:
    model = Model()
    served = model.served()
    talk = [
        {"role": "developer", "content": "rule"},
        user("one"),
        assistant("1"),
        {**user("two"), "id": "msg_mine"},
        call("c1"),
        output("c1"),
    ]
    window = await compacted(served, input=talk)
    assert [item.__struct_config__.tag for item in window.output] == ["message"] * 3 + [
        "compaction"
    ]
    assert [shown(item) for item in window.output[:3]] == ["developer: rule", "user: one",
                                                           "user: two"]  # fmt: skip
    assert window.output[2].id == "msg_mine"
    assert window.object == "response.compaction" and window.usage.total_tokens > 0
    await answered(served, input=[*wired(window.output), user("three")])
    assert [text[:9] for text in model.answered] == ["developer", "user: one", "user: two",
                                                     "user: [Th", "user: thr"]  # fmt: skip


async def test_it_may_name_nothing_but_a_previous_response() -> None:
    model = Model()
    served = model.served()
    first = await answered(served, input="one")
    window = await compacted(served, previous_response_id=first.id)
    assert [shown(item) for item in window.output[:-1]] == ["user: one"]
    with pytest.raises(InvalidRequest, match="not found"):
        await compacted(served, previous_response_id=window.id)


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
def test_a_body_that_cannot_be_compacted_is_refused(body: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_compact_request(json.dumps(body).encode())
    assert (raised.value.param, raised.value.code) == (param, code)


# --- in the midst --------------------------------------------------------------------------------

MANAGED = [{"type": "compaction", "compact_threshold": 1000}]


async def test_over_the_threshold_a_compaction_comes_first_and_the_answer_after() -> None:
    model = Model(summary="S" * 50)
    served = model.served()
    talk = [user("early"), assistant("x" * 1200), user("now?")]
    run = await create(served, input=talk, context_management=MANAGED)
    events = await events_of(run)
    check(events)
    compaction, message = run.response.output
    assert isinstance(compaction, it.Compaction) and isinstance(message, it.Message)
    assert [text[:9] for text in model.answered] == ["user: ear", "user: [Th", "user: now"]
    told, _ = model.summarised
    assert told == ["user: early", "assistant: " + "x" * 1200]  # the question is not summarised
    assert run.response.usage is not None
    assert run.response.usage.input_tokens > 1200 + len("".join(model.answered))
    assert run.response.usage.output_tokens == 1 + 1
    assert wired(run.response.context_management) == MANAGED  # type: ignore[arg-type]
    again = await answered(
        served, input="more", previous_response_id=run.response.id, context_management=MANAGED
    )
    assert [item.__struct_config__.tag for item in again.output] == ["message"]
    assert [text[:9] for text in model.answered] == ["user: ear", "user: [Th", "user: now",
                                                     "assistant", "user: mor"]  # fmt: skip


async def test_under_the_threshold_nothing_is_compacted() -> None:
    model = Model()
    response = await answered(model.served(), input="short", context_management=MANAGED)
    assert [item.__struct_config__.tag for item in response.output] == ["message"]
    assert len(model.backend.requests) == 1


async def test_a_conversation_over_the_context_is_compacted_rather_than_refused() -> None:
    model = Model(size=2000)
    served = model.served()
    talk = [user("a"), assistant("x" * 1900), user("b " * 50), assistant("1"), user("c")]
    for fields in ({}, {"truncation": "auto"}):
        managed = [{"type": "compaction"}]
        response = await answered(served, input=talk, context_management=managed, **fields)
        tags = [item.__struct_config__.tag for item in response.output]
        assert tags == ["compaction", "message"]
    with pytest.raises(InvalidRequest):
        await answered(served, input=talk)


async def test_what_compaction_cannot_shorten_is_left_alone() -> None:
    model = Model()
    served = model.served()
    talk = [user("a"), assistant("1"), user("b")]
    fields = {"instructions": "x" * 1200, "context_management": MANAGED}
    response = await answered(served, input=talk, **fields)
    assert [item.__struct_config__.tag for item in response.output] == ["message"]
    model.size = 1100
    with pytest.raises(InvalidRequest) as raised:
        await answered(served, input=talk, **fields)
    assert raised.value.code == "context_length_exceeded"


async def test_calls_and_outputs_stay_together_at_the_edge() -> None:
    model = Model()
    served = model.served()
    calls = [entry for n in range(9) for entry in (call(f"c{n}"), output(f"c{n}", "y" * 150))]
    response = await answered(
        served, input=[user("go"), *calls, user("?")], context_management=MANAGED
    )
    assert isinstance(response.output[0], it.Compaction)
    left = [text.split()[1] for text in model.answered if text.startswith("function_call ")]
    answered_too = [
        text.split()[1] for text in model.answered if text.startswith("function_call_o")
    ]
    assert left == answered_too and left and len(left) < 9
    assert left == [f"c{n}" for n in range(9 - len(left), 9)]  # the newest


async def test_an_answer_that_fails_behind_its_compaction_fails_the_response() -> None:
    model = Model()
    served = model.served()
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
    response = await answered(served, input=talk, context_management=MANAGED)
    assert response.status == "failed" and response.error is not None
    assert response.error.code == "context_length_exceeded"


async def test_a_reader_that_leaves_stops_the_summary() -> None:
    model = Model(summary="one two three")
    served = model.served()
    run = await create(served, input=[user("a"), TRIGGER])
    deltas = run._spec.reply.deltas()
    await anext(deltas)
    await deltas.aclose()
    assert model.backend.aborted == 0  # not begun yet
    reply = run._spec.reply._summary  # type: ignore[attr-defined]
    inner = reply.deltas()
    await anext(inner)
    await inner.aclose()
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
async def test_thinking_is_sealed_where_it_is_asked_for_or_nothing_is_stored(
    fields: Any, sealed: bool
) -> None:
    served = service(ScriptedBackend([THOUGHT]), MemoryStore(), seal=SEAL)
    run = await create(served, **fields)
    events = await events_of(run)
    item = run.response.output[0]
    assert isinstance(item, it.Reasoning)
    assert bool(item.encrypted_content) is sealed
    done = next(e for e in events if e.__struct_config__.tag == "response.output_item.done")
    assert done.item == item  # type: ignore[attr-defined]
    if run.response.store:
        assert (await served.retrieve("t", run.id)).output[0] == item
    if sealed:
        opened = TenantSealer(SEAL, "t").decrypt_reasoning(
            it.Reasoning(encrypted_content=item.encrypted_content)
        )
        assert opened.content == item.content


async def test_thinking_that_a_limit_cut_is_sealed_too() -> None:
    cut = [Open(it.Reasoning(summary=())), Text("I th"), Finish("length", Usage())]
    response = await answered(service(ScriptedBackend([cut]), seal=SEAL), store=False)
    (item,) = response.output
    assert isinstance(item, it.Reasoning) and item.status == "incomplete"
    assert item.encrypted_content and response.status == "incomplete"


async def thoughts(served: Service, *items: Any, **fields: Any) -> Response:
    return await answered(served, input=[user("a"), *items, user("b")], **fields)


async def test_sealed_thinking_is_shown_again_by_any_replica_with_the_key() -> None:
    one = await answered(service(ScriptedBackend([THOUGHT]), seal=SEAL), store=False)
    (sealed, said) = wired(one.output)
    del sealed["content"]
    backend = ScriptedBackend(["x"])
    await thoughts(service(backend, seal=SEAL), sealed, said)
    assert seen(backend.requests[-1][0])[1] == "thinks: I think."
    given = {**sealed, "content": [{"type": "reasoning_text", "text": "Given."}]}
    await thoughts(service(backend, seal=SEAL), given, said)
    assert seen(backend.requests[-1][0])[1] == "thinks: Given."


def damaged(text: str) -> str:
    return text[:-6] + ("AAAAAA" if text[-6:] != "AAAAAA" else "BBBBBB")


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
@pytest.mark.parametrize(
    "break_it", [damaged, lambda text: "gAAAAABo…", lambda text: text[:40]], ids=["damaged",
    "foreign", "cut"],
)  # fmt: skip
async def test_what_cannot_be_opened_is_refused_or_left_out_by_policy(
    kind: str, break_it: Callable[[str], str]
) -> None:
    sealed = TenantSealer(SEAL, "t").encrypted_reasoning(
        it.Reasoning(content=(it.ReasoningText(text="t"),))
    )
    text = break_it(str(sealed["encrypted_content"]))
    item = {"type": kind, "id": "it_1", "encrypted_content": text}
    backend = ScriptedBackend(["x"])
    with pytest.raises(InvalidRequest) as raised:
        await thoughts(service(backend, seal=SEAL, undecryptable_items="refuse"), item)
    assert raised.value.param == "input[1].encrypted_content"
    assert raised.value.code == "invalid_encrypted_content"
    response = await thoughts(service(backend, seal=SEAL), item)
    assert seen(backend.requests[-1][0]) == ["user: a", "user: b"]
    (removed,) = wired(response.input_transformations)  # type: ignore[arg-type]
    assert removed == {
        "id": "it_1",
        "action": "removed",
        "type": kind,
        "reason": "organization_mismatch",
    }


async def test_another_tenant_and_another_purpose_open_nothing() -> None:
    model = Model()
    served = model.served(undecryptable_items="refuse")
    compaction = wired((await answered(served, input=[user("a"), TRIGGER])).output)
    for item in (compaction[0], {**compaction[0], "type": "reasoning"}):
        tenant = "other" if item["type"] == "compaction" else "t"
        with pytest.raises(InvalidRequest) as raised:
            await create(served, tenant, input=[item, user("b")])
        assert raised.value.param == "input[0].encrypted_content"


async def test_a_summary_stays_readable_where_its_seal_is_broken() -> None:
    backend = ScriptedBackend(["x"])
    item = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "in short"}],
        "encrypted_content": "no",
    }
    await thoughts(service(backend, seal=SEAL), item)
    kept = backend.requests[-1][0].items[1]
    assert isinstance(kept, it.Reasoning) and kept.summary[0].text == "in short"


async def test_a_broken_compaction_leaves_the_one_before_it() -> None:
    model = Model()
    served = model.served()
    (item,) = wired((await answered(served, input=[user("a"), TRIGGER])).output)
    broken = {**item, "id": "cmp_x", "encrypted_content": "no"}
    response = await answered(served, input=[item, user("b"), broken, user("c")])
    assert [text[:9] for text in model.answered] == ["user: a", "user: [Th", "user: b", "user: c"]
    assert len(response.input_transformations) == 1  # type: ignore[arg-type]
