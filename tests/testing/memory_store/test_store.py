"""The memory store, besides the contract: deletion frees memory."""

from __future__ import annotations

import random

from antiphon.store.base import Retention
from antiphon.store.records import Append, ConversationLock, RunEnd
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.response_check import make_response
from antiphon.testing.run_check import batch, begin_run, ended_response


async def test_deleted_responses_free_memory() -> None:
    store, dice = MemoryStore(), random.Random(7)
    for n in range(80):
        previous = str(dice.randrange(n)) if n and dice.random() < 0.7 else None
        await store.save("t", make_response(str(n), previous, created_at=n))
        if dice.random() < 0.3:
            await store.save("t", make_response(str(n), previous, created_at=n, text="again"))
        if dice.random() < 0.3:
            await store.delete("t", f"resp_{dice.randrange(n + 1)}")
    await store.sweep(Retention(max_age_s=30), 80)
    assert store._rows and store._children and store._holders
    await store.sweep(Retention(max_responses=0), 80)
    assert not store._rows and not store._children and not store._holders


async def test_deleted_runs_free_memory() -> None:
    store = MemoryStore()
    for n in range(9):
        name = str(n)
        lock = ConversationLock(f"conv_{n}", "one")
        await store.runs.lock_conversation("t", f"resp_{n}", lock, lease_s=60)
        claim = await begin_run(store, name)
        with store.runs.subscribe("t", f"resp_{n}"):
            await store.runs.append((Append(claim, batch(2)),))
        if n % 3 == 0:
            await store.delete("t", f"resp_{n}")
        else:
            await store.runs.end(claim, RunEnd(stored=ended_response(name), batch=batch(3)))
    await store.sweep(Retention(max_log_age_s=1), 10)
    assert store.runs._runs
    await store.sweep(Retention(max_log_age_s=1), 12)
    assert (
        not store.runs._runs
        and not store.runs.notifications.subscriptions._by_run
        and not store.runs._locks._locks
    )
