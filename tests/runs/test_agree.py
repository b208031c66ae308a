"""Services over all stores give the same answers to any sequence of client requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from antiphon.backends.base import DeltaSink
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import RequestError
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.background.worker import LeaseConfig
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.cursors import PageParams
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.resources.conversations import CreateConversation
from tests.hypothesis_settings import examples
from tests.real.postgres import Postgres
from tests.runs.scripted_service import NOW, OneModel

TEXTS = st.sampled_from(["one", "two words", "and three words"])
PLACES = st.integers(0, 30)
TENANTS = st.sampled_from(["t", "t", "t", "u"])


class Stuck(ScriptedBackend):
    """Answers requests, except those with the cache key ``stuck``, which never get an answer."""

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        reply = await super().prepare(conversation, options)
        if options.cache_key == "stuck":
            reply.pump = _never
        return reply


async def _never(sink: DeltaSink) -> None:
    await asyncio.Event().wait()


class World:
    """A service over one store."""

    def __init__(self, store: Store) -> None:
        numbers = itertools.count(1)
        self.store = store
        self.now = NOW
        backend = Stuck(lambda conversation, _: f"answer {len(conversation.items)}")
        self.service = Service(
            RunDependencies(
                models=OneModel(backend),
                store=store,
                clock=lambda: self.now,
                ids=lambda prefix: f"{prefix}_{next(numbers)}",
                policy=Policy(keepalive_s=0, lease=LeaseConfig(flush_s=0, lease_s=2)),
            )
        )
        self.service.start()


class Agreement(RuleBasedStateMachine):
    """Sends the same requests to a service over each store. The memory store is the reference."""

    database: ClassVar[Postgres]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.worlds = self.loop.run_until_complete(self._open())
        self.ids = ["resp_none"]
        self.talks = ["conv_none"]

    async def _open(self) -> list[World]:
        urls = [
            f"sqlite:{Path(self.folder.name)}/a.db",
            await self.database.create_migrated_database(),
        ]
        return [World(MemoryStore()), *[World(await open_store(url)) for url in urls]]

    def teardown(self) -> None:
        async def close() -> None:
            for world in self.worlds:
                await world.service.drain(0)
                await world.store.close()
            self.database.give_back()

        self.loop.run_until_complete(close())
        self.loop.close()
        self.folder.cleanup()

    def all(self, do: Callable[[World], Awaitable[Any]]) -> Any:
        """What each of them answers, which is the same."""

        async def one(world: World) -> Any:
            try:
                async with asyncio.timeout(60):
                    return msgspec.to_builtins(await do(world))
            except RequestError as error:
                return [type(error).__name__, error.message, error.code, error.param]

        async def asked() -> list[Any]:
            return [await one(world) for world in self.worlds]

        first, *others = self.loop.run_until_complete(asked())
        for other in others:
            assert other == first
        return first

    def id(self, place: int) -> str:
        return self.ids[place % len(self.ids)]

    def talk(self, place: int) -> str:
        return self.talks[place % len(self.talks)]

    # --- what clients do -------------------------------------------------------------------------

    @rule(text=TEXTS, place=PLACES, chained=st.booleans(), tenant=TENANTS, store=st.booleans())
    def create(self, text: str, place: int, chained: bool, tenant: str, store: bool) -> None:
        body: dict[str, Any] = {"model": "scripted", "input": text, "store": store}
        if chained:
            body["previous_response_id"] = self.id(place)

        async def do(world: World) -> Any:
            run = await world.service.create(
                tenant, parse_create_response(json.dumps(body).encode())
            )
            return await run.drive()

        self._remember(self.all(do))

    @rule(
        text=TEXTS,
        place=PLACES,
        chained=st.booleans(),
        stuck=st.booleans(),
        cancelled=st.booleans(),
        store=st.sampled_from([True, True, False]),
    )
    def background(
        self, text: str, place: int, chained: bool, stuck: bool, cancelled: bool, store: bool
    ) -> None:
        body: dict[str, Any] = {"model": "scripted", "input": text, "background": True}
        body |= {"store": store, "prompt_cache_key": "stuck" if stuck else None}
        if chained:
            body["previous_response_id"] = self.id(place)

        async def do(world: World) -> Any:
            service = world.service
            request = parse_create_response(json.dumps(body).encode())
            queued = (await service.enqueue("t", request)).response
            if stuck:
                await _begun(service, queued.id)
                if cancelled:
                    await service.cancel("t", queued.id)
            if not stuck or cancelled:
                events = await _followed(service, queued.id)
                return [await service.retrieve("t", queued.id), events]
            return [await service.retrieve("t", queued.id), []]

        answered = self.all(do)
        self._remember(answered[0] if isinstance(answered[0], dict) else answered)

    def _remember(self, answered: Any) -> None:
        if isinstance(answered, dict):
            self.ids.append(answered["id"])

    @rule(place=PLACES, tenant=TENANTS)
    def retrieve(self, place: int, tenant: str) -> None:
        self.all(lambda world: world.service.retrieve(tenant, self.id(place)))

    @rule(place=PLACES, tenant=TENANTS)
    def cancel(self, place: int, tenant: str) -> None:
        self.all(lambda world: world.service.cancel(tenant, self.id(place)))

    @rule(place=PLACES, tenant=TENANTS)
    def delete(self, place: int, tenant: str) -> None:
        self.all(lambda world: world.service.delete(tenant, self.id(place)))

    @rule(place=PLACES, tenant=TENANTS, order=st.sampled_from(["asc", "desc"]), limit=PLACES)
    def items(self, place: int, tenant: str, order: str, limit: int) -> None:
        cut = PageParams(limit=limit + 1, order=order)  # type: ignore[arg-type]
        self.all(lambda world: world.service.input_items(tenant, self.id(place), cut))

    @rule(place=PLACES, after=st.integers(-1, 20))
    def replay(self, place: int, after: int) -> None:
        async def do(world: World) -> Any:
            name = self.id(place)
            await world.service.check_followable("t", name)
            if (await world.service.retrieve("t", name)).status in ("queued", "in_progress"):
                return []
            return await _followed(world.service, name, after)

        self.all(do)

    @rule(seconds=st.sampled_from([1, 100, 700]), keep=st.sampled_from([None, 2, 50]))
    def expire(self, seconds: int, keep: int | None) -> None:
        async def do(world: World) -> Any:
            world.now += seconds
            return await world.store.sweep(
                Retention(max_age_s=1_000, max_responses=keep), world.now
            )

        self.all(do)

    @rule(text=TEXTS)
    def begin_to_talk(self, text: str) -> None:
        async def do(world: World) -> Any:
            created = await world.service.conversations.create("t", CreateConversation())
            return created

        self.talks.append(self.all(do)["id"])

    @rule(text=TEXTS, place=PLACES, tenant=TENANTS, background=st.booleans(), stuck=st.booleans())
    def talk_on(self, text: str, place: int, tenant: str, background: bool, stuck: bool) -> None:
        body: dict[str, Any] = {"model": "scripted", "input": text, "background": background}
        body |= {"conversation": self.talk(place)}
        if stuck and background:
            body["prompt_cache_key"] = "stuck"

        async def do(world: World) -> Any:
            request = parse_create_response(json.dumps(body).encode())
            if not background:
                return await (await world.service.create(tenant, request)).drive()
            queued = (await world.service.enqueue(tenant, request)).response
            if stuck:
                await _begun(world.service, queued.id, tenant)
            else:
                await _followed(world.service, queued.id, tenant=tenant)
            return await world.service.retrieve(tenant, queued.id)

        self._remember(self.all(do))

    @rule(place=PLACES, tenant=TENANTS)
    def listen(self, place: int, tenant: str) -> None:
        cut = PageParams(limit=100, order="asc")
        self.all(
            lambda world: world.service.conversations.list_items(tenant, self.talk(place), cut)
        )


async def _followed(
    service: Service, response_id: str, after: int = -1, *, tenant: str = "t"
) -> list[Any]:
    async with aclosing(service.event_logs.follow(tenant, response_id, after)) as batches:
        return [json.loads(line) async for lines in batches for line in lines]


async def _begun(service: Service, response_id: str, tenant: str = "t") -> None:
    """Until somebody works on it."""
    async with aclosing(service.event_logs.follow(tenant, response_id)) as batches:
        async for lines in batches:
            if any(b'"response.in_progress"' in line for line in lines):
                return


@pytest.mark.requirement("API-STORES-AGREE")
def test_all_stores_agree(database: Postgres) -> None:
    Agreement.database = database
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Agreement,
        settings=examples(
            8, fuzz=200, stateful_step_count=25, suppress_health_check=list(HealthCheck)
        ),
    )
