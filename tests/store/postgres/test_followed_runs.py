"""Runs that one process writes and another one follows, over PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres import followed_runs
from antiphon.store.postgres.batch_notices import decode_batches, encode_batches
from antiphon.store.records import Append, EventBatch
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import batch, begin_run
from tests.store.postgres.test_store import two

#: A look into the store that does not come during a test.
NEVER_S = 3600.0


def padded(first: int, size: int) -> EventBatch:
    """One event with ``size`` bytes of text."""
    return EventBatch(first=first, count=1, lines=b'{"n":"%s"}\n' % (b"x" * size))


async def receive(store: Store, last: int) -> list[EventBatch]:
    """Return the batches that a waiting subscription to the run receives, up to event ``last``."""
    received: list[EventBatch] = []
    with store.runs.subscribe("t", "resp_a") as tail:
        after = 1
        async with asyncio.timeout(30):
            while after < last:
                if (found := tail.next_batch(after)) is not None:
                    received.append(found)
                    after = found.last
                elif tail.is_stale:
                    tail.is_stale = False
                    page = await store.runs.events("t", "resp_a", after, limit=100)
                    assert page is not None
                    after = page.batches[-1].last if page.batches else after
                else:
                    await tail.wait()
    return received


def url_of(store: Store) -> str:
    """The URL of the store's database."""
    opened: Any = store
    return str(opened._pool._url)


async def until_followed(url: str) -> None:
    """Wait until the run is marked in the store."""
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(30):
        while not await connection.fetchval(
            "SELECT count(*) FROM antiphon.runs WHERE followed_until > now()"
        ):
            await asyncio.sleep(0)
    await connection.close()


def test_payloads_hold_lines_that_fit() -> None:
    batches = [(n, padded(n, size)) for n, size in enumerate((10, 4_000, 3_900, 20_000, 7_000, 0))]
    batches.append((7, EventBatch(first=3, count=2, lines='{"n":"é"}\n{"n":"…"}\n'.encode())))
    payloads = list(encode_batches(batches))
    assert all(len(payload.encode()) < 8_000 for payload in payloads) and len(payloads) < 5
    found = [each for payload in payloads for each in decode_batches(payload)]
    assert found == [(row, None if row == 3 else sent) for row, sent in batches]


@pytest.mark.parametrize("size", [10, 20_000])
async def test_follower_receives_batches_without_a_look(
    database: Postgres, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The lines of short batches come with the notification; long ones are fetched."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(url_of(other))
        for n in range(2, 7):
            await one.runs.append((Append(claim, padded(n, size)),))
        found = await reading
        assert [each.lines for each in found] == [padded(each.first, size).lines for each in found]


async def test_lost_notifications_are_made_up_for_by_a_look(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer may die after the commit."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", 0.01)
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        runs: Any = one.runs
        monkeypatch.setattr(runs._notifications, "publish_to", lambda *_: None)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(url_of(other))
        for n in range(2, 7):
            await one.runs.append((Append(claim, batch(n)),))
        await reading


async def test_next_owner_notifies_the_followers(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two(database) as (one, other, _):
        await begin_run(one)
        third = await open_store(url_of(other))
        reading = asyncio.create_task(receive(other, 2))
        await until_followed(url_of(other))
        (claim,) = await third.runs.claim("third", ["m"], limit=1, lease_s=0)
        await third.runs.append((Append(claim, batch(2)),))
        await reading
        await third.close()


async def test_append_notifies_nobody_if_nobody_follows(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        with one.runs.subscribe("t", "resp_a"), other.runs.subscribe("t", "resp_a"):
            sent: list[object] = []
            runs: Any = one.runs
            runs._notifications._batches.send = lambda *batch: sent.append(batch)
            await one.runs.append((Append(claim, batch(2)),))
            assert not sent
