"""Responses that are saved at the same time share statements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import TurnTokens
from antiphon.testing.store_checks.responses import make_response
from tests.real.postgres import Postgres


@pytest.fixture
async def pool(database: Postgres) -> ConnectionPool:
    return await ConnectionPool.open(await database.create_migrated_database())


@pytest.fixture
async def store(pool: ConnectionPool) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pool)
    yield store
    await store.close()


@pytest.fixture
def statements(pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are executed."""
    executed: list[str] = []
    rows = pool.rows

    async def recorded(name: str, *arguments: Any) -> list[Any]:
        executed.append(name)
        return await rows(name, *arguments)

    monkeypatch.setattr(pool, "rows", recorded)
    return executed


async def test_concurrent_saves_share_statements(
    store: PostgresStore, statements: list[str]
) -> None:
    await asyncio.gather(*(store.save("t", make_response(str(number))) for number in range(100)))
    assert statements == ["save", "save", "save_many", "save_many"]
    await store.save("t", make_response("alone"))
    assert statements[4:] == ["save"]


async def test_saves_of_one_response_keep_their_order(
    store: PostgresStore, pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, released = pool.rows, asyncio.Event()

    async def slow_at_first(name: str, *arguments: Any) -> list[Any]:
        if name == "save_many" and not released.is_set():
            await released.wait()
        return await rows(name, *arguments)

    monkeypatch.setattr(pool, "rows", slow_at_first)
    named = [store.save("t", make_response(str(number))) for number in range(6)]
    saves = [asyncio.create_task(each) for each in named]
    await saves[0]
    await saves[1]  # the statement with the other four is held
    saves.append(asyncio.create_task(store.save("t", make_response("5", text="new"))))
    await store.load("t", "resp_0")  # longer than a save that overtook it would take
    released.set()
    await asyncio.gather(*saves)
    assert await store.load("t", "resp_5") == make_response("5", text="new")


async def test_a_response_that_cannot_be_stored_fails_alone(store: PostgresStore) -> None:
    bad = replace(make_response("bad"), tokens=TurnTokens(base=0, ids=b"", fingerprint="\ud800"))
    good = [make_response(str(number)) for number in range(5)]
    saves = [store.save("t", each) for each in (*good[:3], bad, *good[3:])]
    results = await asyncio.gather(*saves, return_exceptions=True)
    assert isinstance(results.pop(3), StoreError) and results == [True] * 5
    assert (await store.usage("t")).responses == 5


async def test_a_cancelled_save_leaves_the_others(store: PostgresStore) -> None:
    saves = [
        asyncio.create_task(store.save("t", make_response(str(number)))) for number in range(6)
    ]
    await asyncio.sleep(0)
    for each in (saves[0], saves[3]):
        each.cancel()
    results = await asyncio.gather(*saves, return_exceptions=True)
    assert [result is True for result in results] == [False, True, True, False, True, True]
    await store.save("t", make_response("next"))


async def test_closing_waits_for_saves(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await PostgresStore.open(url)
    saves = [
        asyncio.create_task(store.save("t", make_response(str(number)))) for number in range(6)
    ]
    await asyncio.sleep(0)
    await store.close()
    results = await asyncio.gather(*saves, return_exceptions=True)
    again = await PostgresStore.open(url)
    for number, result in enumerate(results):
        is_stored = await again.load("t", f"resp_{number}") is not None
        assert is_stored or isinstance(result, StoreError)
    await again.close()
