"""SQLite for several processes: two stores over one database act as two processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import SetupError
from antiphon.store.base import Retention
from antiphon.store.common import claimable_runs
from antiphon.store.common.peers import Peers
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.records import Append, ClaimQuery, ConversationLock, NewRun, Reservation, RunEnd
from antiphon.store.sqlite import peer_notifications
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import (
    batch,
    begin_run,
    ended_response,
    job,
    queued_response,
)

LONG_S = 3600.0


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    one = await SqliteStore.open(folder / "a.db", peers=folder)
    other = await SqliteStore.open(folder / "a.db", peers=folder)
    try:
        yield one, other
    finally:
        await one.close()
        await other.close()


class Listener:
    """Records what it is notified of."""

    def __init__(self) -> None:
        self.queued = asyncio.Event()
        self.lost: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def on_run_queued(self) -> None:
        self.queued.set()

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        self.lost.put_nowait((response_id, epoch))


async def follow(store: SqliteStore, subscription: Subscription, count: int) -> list[int]:
    """Read events as a reader does, until there are ``count``."""
    numbers: list[int] = []
    while len(numbers) < count:
        found = subscription.next_batch(len(numbers) - 1)
        batches: Any = () if found is None else (found,)
        if found is None and subscription.is_stale:
            subscription.is_stale = False
            page = await store.runs.events("t", "resp_a", len(numbers) - 1, limit=100)
            batches = () if page is None else page.batches
        elif found is None:
            await subscription.wait()
        for each in batches:
            numbers += range(max(each.first, len(numbers)), each.first + each.count)
    return numbers


async def test_readers_of_another_process_get_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_notifications, "_LOOK_S", LONG_S)
    async with pair(tmp_path) as (one, other):
        claim = await begin_run(one)
        with other.runs.subscribe("t", "resp_a") as subscription:
            subscription.mark_stale()
            reading = asyncio.create_task(follow(other, subscription, 30))
            for first in range(2, 30):
                await one.runs.append((Append(claim, batch(first)),))
                await asyncio.sleep(0)
            assert await asyncio.wait_for(reading, 60) == list(range(30))


async def test_a_lost_message_only_delays_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_notifications, "_LOOK_S", 0.05)
    async with pair(tmp_path) as (one, other):
        claim = await begin_run(one)
        monkeypatch.setattr(Peers, "send", lambda *message: None)
        with other.runs.subscribe("t", "resp_a") as subscription:
            reading = asyncio.create_task(follow(other, subscription, 3))
            await one.runs.append((Append(claim, batch(2)),))
            assert await asyncio.wait_for(reading, 60) == [0, 1, 2]


async def test_runs_are_claimed_and_lost_across_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimable_runs, "_MIN_WAIT_S", 0.0)
    monkeypatch.setattr(claimable_runs, "_MAX_WAIT_S", 0.0)
    async with pair(tmp_path) as (one, other):
        first, second = Listener(), Listener()
        one.runs.set_listener(first)
        other.runs.set_listener(second)
        await one.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0, 2)))
        await asyncio.wait_for(second.queued.wait(), 60)
        (claim,) = await one.runs.claim(
            ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)
        )
        assert (
            await other.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=LONG_S))
            == ()
        )
        (seized,) = await other.runs.claim(
            ClaimQuery(owner="two", models=["m"], limit=9, lease_s=0)
        )
        assert await asyncio.wait_for(first.lost.get(), 60) == ("resp_a", seized.epoch)
        assert await one.runs.append((Append(claim, batch(2)),)) == {"resp_a"}
        assert (
            await other.runs.end(seized, RunEnd(stored=ended_response("a"), batch=batch(2))) is True
        )


async def test_readers_hear_of_the_end_and_of_a_new_owner(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        await begin_run(one)
        with one.runs.subscribe("t", "resp_a") as subscription:
            (seized,) = await other.runs.claim(
                ClaimQuery(owner="two", models=["m"], limit=9, lease_s=0)
            )
            await asyncio.wait_for(subscription.wait(), 60)
            subscription.is_stale = False
            await other.runs.end(seized, RunEnd(stored=ended_response("a"), batch=batch(2)))
            await asyncio.wait_for(subscription.wait(), 60)


async def test_a_lock_counts_in_all_processes(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        first, second = ConversationLock("conv_1", "one"), ConversationLock("conv_1", "two")
        assert await one.runs.lock_conversation("t", "resp_1", first, lease_s=LONG_S)
        assert not await other.runs.lock_conversation("t", "resp_2", second, lease_s=LONG_S)
        assert not await other.save("t", make_response("2"), lock=second)
        assert await other.runs.lock_conversation("t", "resp_2", second, lease_s=0)
        assert not await one.save("t", make_response("1"), lock=first)


async def test_reservations_count_in_all_processes(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        limits: Any = {"max_responses": 3, "max_bytes": None, "lease_s": LONG_S}
        stores = [one, other] * 4
        results = await asyncio.gather(
            *(
                store.reserve_response(
                    Reservation(tenant="t", response_id=f"resp_{n}", owner=f"owner {n}", **limits)
                )
                for n, store in enumerate(stores)
            )
        )
        assert sum(results) == 3


async def test_writes_of_all_processes_are_kept(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        await asyncio.gather(
            *(store.save("t", make_response(f"{n}")) for n, store in enumerate([one, other] * 50))
        )
        assert (await one.usage("t")).responses == 100
        retention = Retention(max_responses=40)
        await asyncio.gather(one.sweep(retention, 1), other.sweep(retention, 1))
        assert (await other.usage("t")).responses == 40


async def test_one_server_alone_excludes_those_that_share(tmp_path: Path) -> None:
    async with pair(tmp_path):
        with pytest.raises(SetupError, match="Another process"):
            await SqliteStore.open(tmp_path / "a.db")
    store = await SqliteStore.open(tmp_path / "a.db")
    try:
        with pytest.raises(SetupError, match="Another process"):
            await SqliteStore.open(tmp_path / "a.db", peers=tmp_path)
    finally:
        await store.close()


async def test_owners_of_an_earlier_server_are_forgotten(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, other):
        await one.runs.lock_conversation(
            "t", "resp_1", ConversationLock("conv_1", "old"), lease_s=LONG_S
        )
        await begin_run(one)
        assert (
            await other.runs.claim(ClaimQuery(owner="new", models=["m"], limit=9, lease_s=LONG_S))
            == ()
        )
    await (await SqliteStore.open(tmp_path / "a.db")).close()  # as before workers start
    async with pair(tmp_path) as (one, other):
        assert await other.runs.lock_conversation(
            "t", "resp_2", ConversationLock("conv_1", "new"), lease_s=LONG_S
        )
        (claim,) = await other.runs.claim(
            ClaimQuery(owner="new", models=["m"], limit=9, lease_s=LONG_S)
        )
        assert claim.job.id == "resp_a"
