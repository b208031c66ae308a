"""PostgreSQL, as several processes have it: two stores over one database stand for two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import RunError
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.runs import Append
from antiphon.store.tails import Tail
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import batch, begun, ended, job, queued
from antiphon.testing.store_check import turn


class Told:
    """What a process hears."""

    def __init__(self) -> None:
        self.lost_ones: list[tuple[str, int]] = []
        self.news = asyncio.Event()

    def queued(self) -> None:
        self.news.set()

    def lost(self, response_id: str, epoch: int) -> None:
        self.lost_ones.append((response_id, epoch))
        self.news.set()


@asynccontextmanager
async def two(database: Postgres) -> AsyncIterator[tuple[Store, Store, Told]]:
    """Two stores over one database, and what the second one is told."""
    url = await database.fresh()
    one, other = await open_store(url), await open_store(url)
    told = Told()
    one.runs.listen(Told())
    other.runs.listen(told)
    try:
        async with asyncio.timeout(60):
            await told.news.wait()  # it listens: "something may have been missed"
            yield one, other, told
    finally:
        await one.close()
        await other.close()


async def heard(store: Store, tail: Tail, goal: int) -> list[int]:
    """The numbers of the events a follower gets, up to ``goal``, as readers read them."""
    numbers: list[int] = []
    tail.dirty = True
    while not numbers or numbers[-1] < goal:
        after = numbers[-1] if numbers else -1
        if (found := tail.take(after)) is not None:
            numbers += range(max(after + 1, found.first), found.last + 1)
        elif tail.dirty:
            tail.dirty = False
            page = await store.runs.events("t", "resp_a", after, limit=1_000)
            assert page is not None
            numbers += [n for b in page.batches for n in range(b.first, b.last + 1) if n > after]
        else:
            await tail.wait()
    return numbers


async def test_a_reader_follows_a_run_of_another_process(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        claim = await begun(one)
        with other.runs.follow("t", "resp_a") as tail:
            reading = asyncio.create_task(heard(other, tail, 200))
            for n in range(2, 200):
                await one.runs.append((Append(claim, batch(n)),))
            assert await one.runs.end(claim, ended("a"), batch(200))
            assert await reading == list(range(201))


async def test_many_runs_are_followed_at_once(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        names = [f"n{n}" for n in range(40)]
        claims = [await begun(one, name) for name in names]
        tails = [other.runs.follow("t", f"resp_{name}") for name in names]
        for n in range(2, 30):
            await one.runs.append([Append(claim, batch(n)) for claim in claims])
        for name, tail in zip(names, tails, strict=True):
            last = -1
            tail.dirty = True
            while last < 29:
                if (found := tail.take(last)) is not None:
                    assert found.first == last + 1
                    last = found.last
                elif tail.dirty:
                    tail.dirty = False
                    page = await other.runs.events("t", f"resp_{name}", last, limit=1_000)
                    assert page is not None
                    last = page.batches[-1].last if page.batches else last
                else:
                    await tail.wait()
            tail.__exit__(None, None, None)


async def test_who_is_not_heard_of_loses_its_runs(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        claim = await begun(one, owner="dead")
        assert await other.runs.claim("alive", ["m"], limit=9, lease_s=60) == ()
        await one.runs.beat("dead")
        (taken,) = await other.runs.claim("alive", ["m"], limit=9, lease_s=0)
        assert (taken.job, taken.epoch) == (claim.job, claim.epoch + 1)
        assert await one.runs.append((Append(claim, batch(2)),)) == {"resp_a"}  # a zombie
        assert await one.runs.end(claim, ended("a"), batch(2)) is False
        assert await other.runs.append((Append(taken, batch(2)),)) == frozenset()


async def test_no_run_goes_to_two(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        for n in range(40):
            await one.runs.begin(job(str(n)), queued(str(n)), batch(0))
        taken = await asyncio.gather(
            *(
                store.runs.claim(name, ["m"], limit=5, lease_s=60)
                for store, name in ((one, "a"), (other, "b")) * 5
            )
        )
        names = [claim.job.id for claims in taken for claim in claims]
        assert len(names) == len(set(names))


async def test_the_owner_hears_that_its_run_was_taken(database: Postgres) -> None:
    async with two(database) as (one, other, told):
        await begun(other, owner="theirs")
        told.news.clear()
        seized = await one.runs.seize("t", "resp_a")
        assert seized is not None
        while not told.lost_ones:
            await told.news.wait()
            told.news.clear()
        assert told.lost_ones == [("resp_a", seized.epoch)]


async def test_everybody_hears_of_a_run_to_claim(database: Postgres) -> None:
    async with two(database) as (one, _, told):
        told.news.clear()
        await one.runs.begin(job("a"), queued("a"), batch(0))
        await told.news.wait()


async def test_a_hold_passes_on_with_its_run(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        await one.runs.hold("t", "conv_a", "resp_a", "dead", lease_s=60)
        await begun(one, owner="dead")
        assert not await other.runs.hold("t", "conv_a", "resp_b", "x", lease_s=60)
        await other.runs.claim("alive", ["m"], limit=9, lease_s=0)
        await one.runs.release("dead")
        assert not await one.runs.hold("t", "conv_a", "resp_b", "x", lease_s=60)
        assert await one.runs.hold("t", "conv_a", "resp_b", "x", lease_s=0), "its owner is dead"


async def test_a_server_that_comes_back_is_used_again(database: Postgres) -> None:
    async with two(database) as (one, other, told):
        claim = await begun(one)
        await one.runs.append((Append(claim, batch(2)),))
        await asyncio.to_thread(database.stop)
        with pytest.raises(RunError, match="does not answer"):
            await one.runs.append((Append(claim, batch(3)),))
        told.news.clear()
        await asyncio.to_thread(database.start)
        await told.news.wait()  # it listens again
        with other.runs.follow("t", "resp_a") as tail:
            assert await one.runs.append((Append(claim, batch(3)),)) == frozenset()
            assert await heard(other, tail, 3) == [0, 1, 2, 3]


async def test_only_one_sweeps_at_a_time(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        for n in range(50):
            await one.save("t", turn(str(n), created_at=n))
        swept = await asyncio.gather(
            *(store.sweep(Retention(max_age_s=10), 1_000) for store in (one, other) * 3)
        )
        assert sum(swept) == 50
