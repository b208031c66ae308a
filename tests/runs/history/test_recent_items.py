"""A turn of a long conversation reads what the context can hold, and gives the same as reading all
of it."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.base import Reply
from antiphon.backends.scripted_backend import ScriptedBackend, ScriptedReply
from antiphon.backends.truncation import shorten_conversation
from antiphon.errors import InvalidRequest, context_length_exceeded
from antiphon.inference.conversation import Conversation, Options
from antiphon.store.records import ItemQuery
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import items as it
from antiphon.wire.resources.conversations import ConversationResource
from tests.runs.scripted_service import create, make_service

CONTEXT = 1000


class CountingStore(MemoryStore):
    """Counts the items that are read."""

    read = 0

    async def load_conversation_items(
        self, tenant: str, conversation_id: str
    ) -> tuple[it.Item, ...]:
        items = await super().load_conversation_items(tenant, conversation_id)
        self.read += len(items)
        return items

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[it.Item, ...] | None:
        items = await super().list_conversation_items(tenant, conversation_id, query)
        self.read += len(items or ())
        return items


class LimitedBackend(ScriptedBackend):
    """Counts a token per word and enforces its context. ``seen``: the ids that the model saw."""

    def __init__(self) -> None:
        super().__init__(["Hello"], context_size=CONTEXT)
        self.seen: list[str] = []

    async def prepare(self, conversation: Conversation, options: Options) -> ScriptedReply:
        dropped: tuple[str, ...] = ()
        if _words(conversation) > CONTEXT:
            shorter = options.truncate and shorten_conversation(
                conversation, lambda shorter: shorter, lambda it: _words(it) <= CONTEXT
            )
            if not shorter:
                raise context_length_exceeded()
            conversation, dropped = shorter
        self.seen = [item.id for item in conversation.items]
        reply = await super().prepare(conversation, options)
        return _Truncated(reply, dropped) if dropped else reply  # type: ignore[return-value]


class _Truncated:
    """A reply to a truncated conversation."""

    def __init__(self, reply: Reply, dropped_ids: tuple[str, ...]) -> None:
        self._reply = reply
        self.dropped_ids = dropped_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reply, name)


def _words(conversation: Conversation) -> int:
    return sum(
        len(part.text.split()) + 1
        for item in conversation.items
        for part in getattr(item, "content", ()) or ()
        if hasattr(part, "text")
    )


def message(number: int, text: str, role: Any = "user") -> it.Message:
    return it.Message(id=f"msg_{number}", role=role, content=(it.InputText(text=text),))


async def turn(items: tuple[it.Item, ...], **fields: Any) -> tuple[list[str], int]:
    """Ask in a conversation of these items. Returns what the model saw before the question, and how
    many items were read."""
    store, backend = CountingStore(), LimitedBackend()
    service = make_service(backend, store)
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1), items)
    run = await create(service, conversation="conv_a", **fields)
    assert (await run.drive()).status == "completed"
    return backend.seen[:-1], store.read


LONG = tuple(message(n, "w " * 20) for n in range(2000))


async def test_long_conversation_is_truncated_as_if_it_was_read_whole() -> None:
    visible, read = await turn(LONG, truncation="auto")
    assert visible == [item.id for item in LONG[-47:]], "as many as fit"
    assert read < 1000


async def test_messages_for_the_whole_conversation_are_seen() -> None:
    items = (message(9000, "Be brief.", "developer"), *LONG, message(9001, "New rule.", "system"))
    visible, read = await turn(items, truncation="auto")
    assert (visible[0], visible[-1]) == ("msg_9000", "msg_9001")
    assert read < 1000


async def test_too_long_conversation_is_rejected_without_reading_it_whole() -> None:
    store = CountingStore()
    service = make_service(LimitedBackend(), store)
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1), LONG)
    with pytest.raises(InvalidRequest) as refused:
        await create(service, conversation="conv_a")
    assert refused.value.code == "context_length_exceeded"
    assert store.read < 1000


async def test_conversation_that_fits_is_seen_whole() -> None:
    """The estimate of its tokens is wrong: each message is one very long word."""
    items = tuple(message(n, "x" * 500) for n in range(400))
    visible, _ = await turn(items)
    assert visible == [item.id for item in items]


def call(number: int) -> it.FunctionCall:
    return it.FunctionCall(id=f"fc_{number}", call_id=f"call_{number}", name="f", arguments="{}")


def output(number: int) -> it.FunctionCallOutput:
    return it.FunctionCallOutput(id=f"fco_{number}", call_id=f"call_{number}", output="ok")


async def test_output_of_the_request_finds_its_old_call() -> None:
    answer = {"type": "function_call_output", "call_id": "call_1", "output": "ok"}
    question = {"role": "user", "content": "hi"}
    visible, _ = await turn((call(1), *LONG), truncation="auto", input=[answer, question])
    assert visible[-1] != "fc_1", "it was truncated, with its output"


async def test_outputs_are_read_with_their_calls() -> None:
    items = (*LONG[:1000], *map(call, range(300)), *map(output, range(300)), *LONG[1000:1030])
    visible, read = await turn(items, truncation="auto")
    calls = {id.removeprefix("fc_") for id in visible if id.startswith("fc_")}
    assert calls == {id.removeprefix("fco_") for id in visible if id.startswith("fco_")}
    assert read < 1500


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"context_management": [{"type": "compaction"}]},
        {"input": [{"type": "item_reference", "id": "msg_3"}, {"role": "user", "content": "hi"}]},
    ],
)
async def test_all_is_read_for_what_refers_to_it(fields: dict[str, Any]) -> None:
    _, read = await turn(LONG, truncation="auto", **fields)
    assert read >= len(LONG)
