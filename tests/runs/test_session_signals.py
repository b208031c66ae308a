"""Engines are told when conversations end, wait or are compacted."""

from __future__ import annotations

import itertools
from typing import Any

from antiphon.backends.base import Backend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.backends.session_signals import SessionSignals
from antiphon.inference.sampling import SessionSignal
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.service import Service
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.cursors import PageParams
from antiphon.wire.resources.conversations import CreateConversation

from .scripted_service import NOW, OneModel, create, events_of


class Listening(ScriptedBackend):
    """Records the signals, and the session keys of its requests."""

    def __init__(self) -> None:
        super().__init__(("Hello.",))
        self.signals: list[SessionSignal] = []
        self.keys: list[str | None] = []
        self.owners: list[str | None] = []

    async def on_session(self, signal: SessionSignal) -> None:
        self.signals.append(signal)

    async def prepare(self, conversation: Any, options: Any) -> Any:
        self.keys.append(options.session and options.session.key)
        self.owners.append(options.session and options.session.owner)
        return await super().prepare(conversation, options)


class Deaf(ScriptedBackend):
    async def on_session(self, signal: SessionSignal) -> None:
        raise OSError("gone")


def make(backend: Backend, erased: list[SessionSignal]) -> Service:
    numbers, model = itertools.count(1), OneModel(backend)
    return Service(
        RunDependencies(
            models=model,
            store=MemoryStore(),
            clock=lambda: NOW,
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            signals=SessionSignals(model.all, erased.append),
        )
    )


async def test_deletion_names_the_conversation_of_the_requests() -> None:
    backend, erased = Listening(), list[SessionSignal]()
    service = make(backend, erased)
    first = await create(service)
    await events_of(first)
    second = await create(service, previous_response_id=first.response.id)
    await events_of(second)
    await service.delete("t", second.response.id)
    keyed = await create(service, prompt_cache_key="mine")
    await events_of(keyed)
    await service.delete("t", keyed.response.id)
    talk = await service.conversations.create("t", CreateConversation())
    in_talk = await create(service, conversation=talk.id)
    await events_of(in_talk)
    await service.delete("t", in_talk.response.id)  # its items stay in the conversation
    (item, *_) = (await service.conversations.list_items("t", talk.id, PageParams())).data
    await service.conversations.delete_item("t", talk.id, item.id)
    await service.conversations.delete("t", talk.id)
    await service.tenants.delete("t")
    await service.drain(1)
    assert backend.keys[0] == backend.keys[1]
    assert [(each.event, each.key, each.owner) for each in backend.signals] == [
        ("deleted", backend.keys[1], second.response.id),
        ("deleted", backend.keys[2], keyed.response.id),
        ("deleted", backend.keys[3], talk.id),
        ("deleted", backend.keys[3], talk.id),
        ("deleted", None, None),
    ]
    ids = [first.response.id, second.response.id, keyed.response.id, talk.id]
    assert backend.owners == ids
    assert erased == backend.signals and {each.tenant for each in erased} == {"t"}


async def test_response_that_is_not_stored_has_no_owner() -> None:
    backend = Listening()
    await events_of(await create(make(backend, []), store=False))
    assert backend.owners == [None]


async def test_engine_that_fails_is_ignored() -> None:
    service = make(Deaf(("Hello.",)), erased := [])
    run = await create(service)
    await events_of(run)
    await service.delete("t", run.response.id)
    await service.drain(1)
    assert len(erased) == 1
