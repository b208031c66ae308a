"""The free connections in front of asyncpg's pool."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from antiphon.store import open_store
from antiphon.store.postgres import connections
from antiphon.store.postgres.connections import Connections, DriverConnection
from antiphon.testing.store_checks.responses import make_response
from tests.real.postgres import Postgres
from tests.store.postgres.test_pool import connected


class FakeConnection:
    """A connection that can be lost. Then each call raises an error, as with asyncpg's proxy."""

    def __init__(self) -> None:
        self.is_lost = False

    def is_closed(self) -> bool:
        """Return False. Raise an error if the connection is lost."""
        if self.is_lost:
            raise asyncpg.InterfaceError("the connection has been released")
        return False


class FakePool:
    """asyncpg's pool, with at most two connections."""

    def __init__(self) -> None:
        self.idle: list[FakeConnection] = []
        self.room = asyncio.Semaphore(2)
        self.lent_count = 0

    async def acquire(self) -> FakeConnection:
        """Return an idle or a new connection."""
        await self.room.acquire()
        self.lent_count += 1
        return self.idle.pop() if self.idle else FakeConnection()

    async def release(self, connection: FakeConnection) -> None:
        """Take a connection back."""
        if not connection.is_lost:
            self.idle.append(connection)
        self.room.release()
        self.lent_count -= 1

    async def close(self) -> None:
        """Check that all connections are back."""
        assert self.lent_count == 0


async def test_last_used_connection_is_used_next() -> None:
    made = Connections(FakePool(), asyncpg.InterfaceError)
    one, other = await made.acquire(), await made.acquire()
    await made.free(one)
    await made.free(other)
    assert await made.acquire() is other
    assert await made.acquire() is one
    await made.release(one)
    await made.free(other)
    await made.close()


async def test_lost_connection_is_replaced() -> None:
    made = Connections(FakePool(), asyncpg.InterfaceError)
    lost = await made.acquire()
    await made.free(lost)
    lost.is_lost = True
    found = await made.acquire()
    assert found is not lost
    await made.free(found)
    await made.close()


@pytest.mark.parametrize("gives_back", ["free", "release"])
async def test_waiting_caller_gets_the_next_connection(gives_back: str) -> None:
    made = Connections(FakePool(), asyncpg.InterfaceError)
    held = [await made.acquire(), await made.acquire()]
    waiting = asyncio.create_task(made.acquire())
    await asyncio.sleep(0)
    await getattr(made, gives_back)(held[0])
    async with asyncio.timeout(60):
        assert await waiting is held[0]
    for connection in held:
        await made.free(connection)
    await made.close()


async def test_unused_connections_go_back_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_CHECK_S", 0.001)
    pool = FakePool()
    made = Connections(pool, asyncpg.InterfaceError)
    for connection in [await made.acquire(), await made.acquire()]:
        await made.free(connection)
    async with asyncio.timeout(60):
        while len(pool.idle) < 2:
            await asyncio.sleep(0.001)
    await made.close()


async def test_more_callers_than_connections_are_all_served(database: Postgres) -> None:
    store = await open_store(await database.create_migrated_database(), connections=2)
    names = [str(n) for n in range(40)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.save("t", make_response(name)) for name in names))
        found: list[Any] = await asyncio.gather(*(store.load("t", f"resp_{n}") for n in names))
    assert [each.response.id for each in found] == [f"resp_{name}" for name in names]
    await store.close()


def is_lost(connection: DriverConnection) -> bool:
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # asyncpg has taken it back
        return True


async def test_lost_connections_are_replaced_without_an_error(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server closes idle connections, for example because it restarts."""
    url = await database.create_migrated_database()
    store = await open_store(url)
    used, free = set[DriverConnection](), Connections.free

    async def record(self: Connections, connection: DriverConnection) -> None:
        used.add(connection)
        await free(self, connection)

    monkeypatch.setattr(Connections, "free", record)
    await asyncio.gather(*(store.has_response("t", str(n)) for n in range(5)))
    assert used
    async with connected(url) as connection:
        ended = await connection.fetch(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
    assert len(ended) == 5 and all(is_ended for (is_ended,) in ended)
    async with asyncio.timeout(60):
        while not all(map(is_lost, used)):
            await asyncio.sleep(0.001)  # asyncpg has not noticed it yet
    for n in range(5):
        assert not await store.has_response("t", str(n))
    await store.close()
