"""Deletions of tenants, as all processes of a server see them."""

from __future__ import annotations

import asyncio
import math

import pytest

from antiphon.errors import StoreError
from antiphon.resources.admin.recent_value import MAX_AGE_S, RecentValue
from antiphon.resources.admin.tenant_deletions import TenantDeletions
from antiphon.testing.memory_store.store import MemoryStore

WEEK_S = 7 * 86_400


class Timer:
    """Monotonic seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_other_processes_know_a_deletion_two_seconds_later() -> None:
    store, timer = MemoryStore(), Timer()
    here, there = (
        TenantDeletions(store.values, clock=lambda: 1000.0, timer=timer) for _ in range(2)
    )
    assert await there.current() == {}
    await here.record("t")
    assert await here.current() == {"t": 1000.0}
    assert await there.current() == {}
    timer.now += MAX_AGE_S + 1
    assert await there.current() == {"t": 1000.0}


async def test_each_deletion_is_later_and_old_ones_are_forgotten() -> None:
    now = 1000.0
    deletions = TenantDeletions(MemoryStore().values, clock=lambda: now, timer=Timer())
    await deletions.record("t")
    now -= 500  # a clock that was wrong
    await deletions.record("t")
    assert (await deletions.current())["t"] > 1000
    now += WEEK_S + 1000
    await deletions.record("u")
    assert set(await deletions.current()) == {"u"}


async def test_a_value_outlives_an_outage_of_the_store_for_its_time() -> None:
    timer, answers = Timer(), [1]

    async def read() -> int:
        if not answers:
            raise StoreError("The store does not answer.")
        return answers.pop()

    value = RecentValue(read, 0, timer=timer, outage_s=60)
    assert await value.current() == 1
    timer.now = 59
    assert await value.current() == 1
    timer.now = 70
    with pytest.raises(StoreError):
        await value.current()
    assert await RecentValue(read, 0, timer=timer, outage_s=math.inf).current() == 0


async def test_only_one_caller_waits_for_a_slow_store() -> None:
    timer, gate, reads = Timer(), asyncio.Event(), 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        if reads > 1:
            await gate.wait()
        return reads

    value = RecentValue(read, 0, timer=timer, outage_s=60)
    await value.current()
    timer.now = 5
    waiting = asyncio.create_task(value.current())
    await asyncio.sleep(0)
    assert await value.current() == 1  # without waiting
    gate.set()
    assert await waiting == 2
    assert await value.current() == 2
