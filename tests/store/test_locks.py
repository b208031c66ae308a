"""Leases where one process has the store: who is silent for too long has lost what it had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.locks import ConversationLocks, OwnerHeartbeats
from antiphon.testing.run_check import begun

LEASE_S = 5.0


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("antiphon.store.locks.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture(params=["memory:", "sqlite:{}/a.db"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store = await open_store(request.param.format(tmp_path))
    yield store
    await store.close()


async def test_a_run_stays_with_whoever_is_heard_of(store: Store, clock: Clock) -> None:
    await begun(store)
    for _ in range(3):
        clock.now += 4.9
        assert await store.runs.claim("two", ["m"], limit=1, lease_s=LEASE_S) == ()
        await store.runs.heartbeat("one")
    clock.now += LEASE_S
    assert len(await store.runs.claim("two", ["m"], limit=1, lease_s=LEASE_S)) == 1
    assert await store.runs.claim("one", ["m"], limit=1, lease_s=LEASE_S) == ()


async def test_what_was_seized_is_left_to_be_ended_for_a_while(store: Store, clock: Clock) -> None:
    await begun(store)
    clock.now += 60
    await store.runs.take_over("t", "resp_a")
    clock.now += 4.9
    assert await store.runs.claim("two", ["m"], limit=1, lease_s=LEASE_S) == ()
    clock.now += 0.1
    assert len(await store.runs.claim("two", ["m"], limit=1, lease_s=LEASE_S)) == 1


async def test_a_hold_is_as_long_lived_as_whoever_has_the_run(store: Store, clock: Clock) -> None:
    hold = store.runs.lock_conversation
    await hold("t", "conv_a", "resp_a", "one", lease_s=LEASE_S)
    await begun(store)
    clock.now += LEASE_S
    await store.runs.claim("two", ["m"], limit=1, lease_s=LEASE_S)
    clock.now += 4.9
    assert await hold("t", "conv_a", "resp_b", "three", lease_s=LEASE_S) is False
    clock.now += 0.1
    assert await hold("t", "conv_a", "resp_b", "three", lease_s=LEASE_S) is True


def test_who_holds_what(clock: Clock) -> None:
    owners = OwnerHeartbeats()
    holds = ConversationLocks(owners)
    assert holds.holder("t", "conv_a") == ""
    assert holds.acquire("t", "conv_a", "resp_a", "one", lease_s=LEASE_S, unclaimed=None)
    assert (holds.holder("t", "conv_a"), holds.holder("u", "conv_a")) == ("resp_a", "")
    assert owners.living_owners(LEASE_S) == {"one"}
    clock.now += LEASE_S
    assert owners.living_owners(LEASE_S) == frozenset()
    assert not holds.acquire("t", "conv_a", "resp_b", "two", lease_s=LEASE_S, unclaimed="resp_a")
    assert owners.living_owners(LEASE_S) == frozenset(), "who got nothing is not heard"
    assert holds.acquire("t", "conv_a", "resp_b", "two", lease_s=LEASE_S, unclaimed="resp_c")
