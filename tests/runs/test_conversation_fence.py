"""A response is added to its conversation once, and only while it holds the lock."""

from __future__ import annotations

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, StoreError
from antiphon.runs.service import Service
from antiphon.store.records import ConversationLock, StoredResponse
from antiphon.store.usage import UsageRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire import events as ev
from antiphon.wire.items import Item, Message
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.resources.conversations import CreateConversation
from tests.runs.scripted_service import RecordingSink, create, make_service


class LostAnswers(MemoryStore):
    """A store that stores a response, but whose first answers are lost."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        is_saved = await super().save(tenant, stored, lock=lock, usage=usage)
        if self.lost:
            self.lost -= 1
            raise StoreError("The store does not answer.")
        return is_saved


async def _conversation(service: Service) -> str:
    return (await service.conversations.create("t", CreateConversation())).id


async def _steal(store: MemoryStore, conversation: str) -> None:
    """Take the lock of a conversation away, as another server does after an outage."""
    assert await store.runs.lock_conversation(
        "t", "resp_other", ConversationLock(conversation, "other"), lease_s=0
    )


async def test_save_is_repeated_when_its_answer_is_lost() -> None:
    store = LostAnswers(1)
    service = make_service(ScriptedBackend(["Hello"]), store)
    conversation = await _conversation(service)
    response = await (await create(service, conversation=conversation)).drive()
    assert response.status == "completed"
    items = await store.load_conversation_items("t", conversation)
    assert [item.role for item in items if isinstance(item, Message)] == ["user", "assistant"]


async def test_response_fails_when_the_store_takes_it_no_more() -> None:
    store = LostAnswers(9)
    service = make_service(ScriptedBackend(["Hello"]), store, save_retry_s=0)
    response = await (await create(service)).drive()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.message.endswith("You can retry your request.")


async def test_response_that_lost_its_lock_is_not_added() -> None:
    store = MemoryStore()
    service = make_service(ScriptedBackend(["Hello"]), store)
    conversation = await _conversation(service)
    run = await create(service, conversation=conversation)
    await _steal(store, conversation)
    sink = RecordingSink()
    response = await run.drive(sink)
    assert response.status == "failed" and response.error is not None
    assert "was not added" in response.error.message
    assert isinstance(sink.events[-1], ev.Failed)
    assert await store.load_conversation_items("t", conversation) == ()
    stored = await store.load("t", run.id)
    assert stored is not None and stored.response == response


async def test_run_that_lost_its_lock_is_not_created() -> None:
    class Slow(MemoryStore):
        """A store in which another server takes the lock before the run is created."""

        async def load_conversation_items(
            self, tenant: str, conversation_id: str
        ) -> tuple[Item, ...]:
            await _steal(self, conversation_id)
            return await super().load_conversation_items(tenant, conversation_id)

    store = Slow()
    service = make_service(ScriptedBackend(["Hello"]), store)
    conversation = await _conversation(service)
    body = b'{"input": "hi", "background": true, "conversation": "%s"}' % conversation.encode()
    with pytest.raises(InvalidRequest) as refused:
        await service.enqueue("t", parse_create_response(body), "resp_1")
    assert refused.value.code == "conversation_locked"
    assert await store.load("t", "resp_1") is None
