"""Locks of conversations when the store does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.errors import StoreError
from antiphon.resources.conversations import Conversations
from antiphon.store.records import ConversationLock
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.resources.conversations import CreateConversation
from antiphon.wire.response import ConversationRef


class _FlakyRuns:
    """Calls of ``methods`` take effect, but their first answer is lost."""

    def __init__(self, runs: Any, *methods: str) -> None:
        self._runs = runs
        self._methods = set(methods)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._runs, name)
        if name not in self._methods:
            return method
        self._methods.discard(name)

        async def call(*arguments: Any, **options: Any) -> Any:
            if name == "lock_conversation":
                await method(*arguments, **options)
            raise StoreError("The store does not answer.")

        return call


class _FlakyStore:
    def __init__(self, store: MemoryStore, *methods: str) -> None:
        self._store = store
        self.runs = _FlakyRuns(store.runs, *methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _is_unlocked(store: MemoryStore, conversation_id: str) -> bool:
    """Whether another response can lock the conversation within a few steps of the loop."""
    for _ in range(50):
        if await store.runs.lock_conversation(
            "t", "resp_other", ConversationLock(conversation_id, "other"), lease_s=1000
        ):
            return True
        await asyncio.sleep(0)
    return False


@pytest.mark.parametrize("method", ["lock_conversation", "unlock_conversation"])
async def test_conversation_is_unlocked_after_a_lost_answer(method: str) -> None:
    store = MemoryStore()
    flaky: Any = _FlakyStore(store, method)
    conversations = Conversations(
        flaky, clock=lambda: 0, ids=lambda prefix: f"{prefix}_1", owner="one", lease_s=0
    )
    created = await conversations.create("t", CreateConversation())
    if method == "lock_conversation":
        with pytest.raises(StoreError):
            await conversations.lock("t", ConversationRef(id=created.id), "resp_1")
    else:
        lock = await conversations.lock("t", ConversationRef(id=created.id), "resp_1")
        await lock.release()
    assert await _is_unlocked(store, created.id)
