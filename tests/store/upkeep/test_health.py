"""The check whether the store can be written."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import DISK_OBSTACLES, Overloaded, StoreError
from antiphon.store.sqlite.database import Database
from antiphon.store.sqlite.store import SqliteStore
from antiphon.store.upkeep import health
from antiphon.store.upkeep.health import StoreHealth
from antiphon.testing.memory_store.store import MemoryStore


class Checked:
    """A store whose check does what it is told, and counts."""

    def __init__(self) -> None:
        self.checks = 0
        self.problem: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def check_writable(self) -> None:
        self.checks += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.problem is not None:
            raise self.problem


def checked(monkeypatch: pytest.MonkeyPatch, fresh_s: float) -> tuple[Any, StoreHealth]:
    monkeypatch.setattr(health, "_FRESH_S", fresh_s)
    store: Any = Checked()
    return store, StoreHealth(store)


async def test_one_check_serves_all_callers_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    store, healthy = checked(monkeypatch, 3_600)
    assert all(await asyncio.gather(*(healthy.is_writable() for _ in range(9))))
    assert await healthy.is_writable() and store.checks == 1


async def test_write_counts_as_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    store, healthy = checked(monkeypatch, 3_600)
    healthy.note_write()
    assert await healthy.is_writable() and store.checks == 0


async def test_late_write_does_not_hide_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    store, healthy = checked(monkeypatch, 3_600)
    store.problem = StoreError("The store does not answer.")
    assert not await healthy.is_writable()
    healthy.note_write()
    assert not await healthy.is_writable()


async def test_store_that_fails_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    store, healthy = checked(monkeypatch, 0)
    await healthy.require()
    store.problem = StoreError("The store does not answer.")
    with pytest.raises(Overloaded) as refused:
        await healthy.require()
    assert (refused.value.status, refused.value.code) == (503, "server_is_overloaded")
    store.problem = None
    await healthy.require()


async def test_store_that_hangs_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.0)
    store, healthy = checked(monkeypatch, 0)
    store.gate = asyncio.Event()
    assert not await healthy.is_writable()


async def test_store_that_is_slow_is_not_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for a processor is slow, too. Its store is down after a longer time."""
    store, healthy = checked(monkeypatch, 0)
    assert await healthy.is_writable()
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.0)
    store.gate = asyncio.Event()
    assert await healthy.is_writable()
    monkeypatch.setattr(health, "_BROKEN_S", 0.0)
    assert not await healthy.is_writable()


@pytest.mark.parametrize("cause", DISK_OBSTACLES)
async def test_obstacle_of_the_disk_is_named(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    store, healthy = checked(monkeypatch, 0)
    store.problem = StoreError(f"The store could not be written: {cause}.")
    with pytest.raises(Overloaded, match=f"cannot store responses at the moment: {cause}"):
        await healthy.require()
    assert healthy.cause == cause


async def test_caller_that_leaves_does_not_stop_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, healthy = checked(monkeypatch, 3_600)
    store.gate = asyncio.Event()
    first, second = (asyncio.create_task(healthy.is_writable()) for _ in range(2))
    while not store.checks:
        await asyncio.sleep(0)
    first.cancel()
    store.gate.set()
    assert await second and store.checks == 1


async def test_stores_that_cannot_be_written(tmp_path: Path) -> None:
    memory = MemoryStore()
    await memory.check_writable()
    await memory.close()
    with pytest.raises(StoreError):
        await memory.check_writable()
    database = await Database.open(tmp_path / "a.db")
    store = SqliteStore(database)
    await store.check_writable()
    await database.write(_fill)
    with pytest.raises(StoreError):
        await store.check_writable()
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("SELECT content FROM named_values").fetchone() == (b"1",)


def _fill(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only=ON")  # as a full or read-only disk
