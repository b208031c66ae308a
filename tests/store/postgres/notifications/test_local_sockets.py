"""Batches that processes of one host send each other over Unix sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.ipc.frames import FrameConnection
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.common import peers
from antiphon.store.postgres.notifications import followed_runs
from antiphon.store.postgres.notifications.listener import NOTICES
from antiphon.store.records import Append
from antiphon.testing.store_checks.runs import begin_run
from tests.real.postgres import Postgres
from tests.store.postgres.notifications.test_followed_runs import (
    NEVER_S,
    follow_ten_batches,
    padded,
    receive,
    record_channels,
    until_followed,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


@asynccontextmanager
async def two_on_a_host(database: Postgres, folders: tuple[Path, Path]) -> AsyncIterator[Any]:
    """Open two stores over one database. They are on one host if their folders are the same."""
    url = await database.create_migrated_database()
    one, other = [await open_store(url, peers=folder) for folder in folders]
    try:
        yield one, other
    finally:
        await one.close()
        await other.close()


async def check_ten_batches(database: Postgres, one: Store, other: Store) -> None:
    found = await follow_ten_batches(database, one, other)
    assert [each.lines for each in found] == [padded(each.first, 20_000).lines for each in found]


async def test_events_reach_a_reader_on_the_same_host_without_the_database(
    database: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two_on_a_host(database, (folder, folder)) as (one, other):
        channels = record_channels(monkeypatch)
        await check_ten_batches(database, one, other)
        assert set(channels) <= {NOTICES}, "only notices of claimed runs"


async def test_events_reach_a_reader_on_another_host(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    folders = (tmp_path / "host one", tmp_path / "host two")
    async with two_on_a_host(database, folders) as (one, other):
        await check_ten_batches(database, one, other)


async def test_lost_socket_loses_no_event(
    database: Postgres, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the reader's socket is deleted while it reads."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    made: list[FrameConnection] = []

    class Recorded(FrameConnection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(peers, "FrameConnection", Recorded)
    async with two_on_a_host(database, (folder, folder)) as (one, other):
        claim = await begin_run(one)
        reading = asyncio.create_task(receive(other, 11))
        await until_followed(database.newest_url)
        for n in range(2, 12):
            await one.runs.append((Append(claim, padded(n, 100)),))
            if n == 6:
                async with asyncio.timeout(60):
                    while not made:
                        await asyncio.sleep(0.001)
                for path in folder.glob("*.peer"):
                    path.unlink()
                for connection in made:
                    connection.close()
                    await asyncio.sleep(0.01)
        await reading
