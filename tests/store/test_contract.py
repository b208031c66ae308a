"""Every store we ship keeps the contract, and all of them agree."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.testing.claim_check import CHECKS as CLAIM_CHECKS
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import CHECKS as RUN_CHECKS
from antiphon.testing.store_check import CHECKS, check_store, turn
from antiphon.wire.conversations import Conversation


async def opened(kind: str, request: pytest.FixtureRequest) -> Store:
    """A fresh store of a kind."""
    if kind == "memory":
        return await open_store("memory:")
    if kind == "sqlite":
        return await open_store(f"sqlite:{request.getfixturevalue('tmp_path')}/a.db")
    database: Postgres = request.getfixturevalue("database")
    return await open_store(await database.fresh())


KINDS = ("memory", "sqlite", "postgres")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CHECKS)
async def test_the_contract(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    store = await opened(kind, request)
    try:
        async with asyncio.timeout(30):
            await CHECKS[name](store)
    finally:
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*RUN_CHECKS, *CLAIM_CHECKS])
async def test_the_contract_of_runs(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    store = await opened(kind, request)
    try:
        async with asyncio.timeout(30):
            await {**RUN_CHECKS, **CLAIM_CHECKS}[name](store)
    finally:
        await store.close()


async def test_the_battery_runs_every_check() -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield await open_store("memory:")

    assert [name async for name in check_store(opened)] == list(CHECKS)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "redis://h", "sqlite:", ""])
async def test_a_store_of_no_known_kind_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(SetupError, match="No store is called") as refused:
        await open_store(url)
    assert "secret" not in str(refused.value)


NAMES = st.sampled_from("abcdef")
TENANTS = st.sampled_from("tu")


class Agreement(RuleBasedStateMachine):
    """Memory and SQLite do the same things and must say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.stores = [
            self.run_(open_store("memory:")),
            self.run_(open_store(f"{self.folder.name}/a.db")),
        ]
        #: What each response built on when it was first saved.
        self.saved: dict[tuple[str, str], str | None] = {}
        self.clock = 0

    def run_(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def both(self, method: str, *arguments: Any) -> Any:
        one, other = (self.run_(getattr(store, method)(*arguments)) for store in self.stores)
        assert one == other, (method, arguments)
        return one

    @rule(
        tenant=TENANTS,
        name=NAMES,
        previous=st.none() | NAMES,
        added=st.none() | NAMES,
        talk=st.none() | NAMES,
    )
    def save(
        self, tenant: str, name: str, previous: str | None, added: str | None, talk: str | None
    ) -> None:
        """Save it, again perhaps, in a conversation perhaps, with an item of another perhaps."""
        self.clock += 1
        if previous == name or self.both("load", tenant, f"resp_{previous}") is None:
            previous = None
        previous = self.saved.setdefault((tenant, name), previous)
        items = () if added in (None, name) else turn(added).input
        stored = turn(name, previous, created_at=self.clock, added=items)
        conversation = None if talk is None else f"conv_{talk}"
        for store in self.stores:
            self.run_(store.save(tenant, stored, conversation=conversation))

    @rule(tenant=TENANTS, name=NAMES, added=NAMES)
    def talk(self, tenant: str, name: str, added: str) -> None:
        label = Conversation(id=f"conv_{name}", created_at=1, metadata={"at": str(self.clock)})
        self.both("put_conversation", tenant, label, turn(added).input)

    @rule(tenant=TENANTS, name=NAMES, added=NAMES)
    def say(self, tenant: str, name: str, added: str) -> None:
        self.both("add_items", tenant, f"conv_{name}", turn(added).input)

    @rule(tenant=TENANTS, name=NAMES, gone=NAMES)
    def unsay(self, tenant: str, name: str, gone: str) -> None:
        self.both("remove_item", tenant, f"conv_{name}", f"msg_i_{gone}")

    @rule(tenant=TENANTS, name=NAMES)
    def drop(self, tenant: str, name: str) -> None:
        self.both("drop_conversation", tenant, f"conv_{name}")

    @rule()
    def empty(self) -> None:
        self.both("sweep", Retention(max_bytes=0), self.clock)

    @rule(tenant=TENANTS, name=NAMES)
    def delete(self, tenant: str, name: str) -> None:
        self.both("delete", tenant, f"resp_{name}")

    @rule(most=st.integers(0, 6))
    def sweep(self, most: int) -> None:
        self.both("sweep", Retention(max_responses=most), self.clock)

    @rule(age=st.integers(0, 6))
    def expire(self, age: int) -> None:
        self.both("sweep", Retention(max_age_s=age), self.clock)

    @invariant()
    def they_agree(self) -> None:
        for tenant in "tu":
            for name in "abcdef":
                self.both("chain", tenant, f"resp_{name}")
                self.both("item", tenant, f"msg_i_{name}")
                self.both("item", tenant, f"msg_o_{name}")
                self.both("conversation", tenant, f"conv_{name}")
                self.both("conversation_items", tenant, f"conv_{name}")

    def teardown(self) -> None:
        for store in self.stores:
            self.run_(store.close())
        self.loop.close()
        self.folder.cleanup()


TestAgreement = Agreement.TestCase
TestAgreement.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
