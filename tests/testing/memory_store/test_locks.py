"""Leases: an owner without heartbeats loses its runs and locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.store.base import Store
from antiphon.store.records import Claim, ClaimQuery, ConversationLock, RunEnd
from antiphon.testing.memory_store.locks import ConversationLocks, OwnerHeartbeats
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from tests.stores import open_empty_store

LEASE_S = 5.0


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("antiphon.testing.memory_store.locks", "antiphon.store.sqlite.runs"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_empty_store(request.param, request, tmp_path)
    yield store
    await store.close()


async def claim(store: Store, owner: str) -> tuple[Claim, ...]:
    """Claim one run for an owner."""
    return await store.runs.claim(ClaimQuery(owner=owner, models=["m"], lease_s=LEASE_S))


async def test_heartbeats_keep_a_run(store: Store, clock: Clock) -> None:
    await begin_run(store)
    for _ in range(3):
        clock.now += 4.9
        assert await claim(store, "two") == ()
        await store.runs.heartbeat(ClaimQuery(owner="one"))
    clock.now += LEASE_S
    assert len(await claim(store, "two")) == 1
    assert await claim(store, "one") == ()


async def test_taken_over_run_can_be_claimed_after_the_lease(store: Store, clock: Clock) -> None:
    await begin_run(store)
    clock.now += 60
    await store.runs.take_over("t", "resp_a")
    clock.now += 4.9
    assert await claim(store, "two") == ()
    clock.now += 0.1
    assert len(await claim(store, "two")) == 1


async def test_lock_lasts_until_its_run_ends(store: Store, clock: Clock) -> None:
    lock = store.runs.lock_conversation
    await lock("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LEASE_S)
    await begin_run(store)
    clock.now += LEASE_S
    await claim(store, "two")
    clock.now += 4.9
    assert await lock("t", "resp_b", ConversationLock("conv_a", "three"), lease_s=LEASE_S) is False
    clock.now += 0.1
    assert await lock("t", "resp_b", ConversationLock("conv_a", "three"), lease_s=LEASE_S) is False
    seized = await store.runs.take_over("t", "resp_a")
    assert seized is not None and await store.runs.end(
        seized, RunEnd(stored=ended_response("a"), batch=batch(2))
    )
    assert await lock("t", "resp_b", ConversationLock("conv_a", "three"), lease_s=LEASE_S) is True


def test_lock_is_refused_while_its_owner_lives(clock: Clock) -> None:
    owners = OwnerHeartbeats()
    locks = ConversationLocks(owners)
    first, second = ConversationLock("conv_a", "one"), ConversationLock("conv_a", "two")
    assert locks.acquire("t", "resp_a", first, lease_s=LEASE_S)
    assert locks.is_held("t", "resp_a", first)
    assert not locks.is_held("u", "resp_a", first)
    locks.add_run("t", "resp_a")
    assert owners.living_owners(LEASE_S) == {"one"}
    clock.now += LEASE_S
    assert owners.living_owners(LEASE_S) == frozenset()
    assert not locks.acquire("t", "resp_b", second, lease_s=LEASE_S)
    assert owners.living_owners(LEASE_S) == frozenset(), "a refused lock is not a heartbeat"
    locks.remove_holder("t", "resp_a")
    assert locks.acquire("t", "resp_b", second, lease_s=LEASE_S)
