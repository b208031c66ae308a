"""Batches that processes of one host send each other over Unix sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.ipc.frames import FrameConnection
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres.notifications import followed_runs, local_sockets
from antiphon.store.postgres.notifications.batch_payloads import decode_batches
from antiphon.store.postgres.notifications.listener import NOTICES
from antiphon.store.postgres.notifications.local_sockets import LocalBatches, LocalSockets
from antiphon.store.records import Append
from antiphon.testing.store_checks.runs import batch, begin_run
from tests.real.postgres import Postgres
from tests.store.postgres.notifications.test_followed_runs import (
    NEVER_S,
    follow_ten_batches,
    padded,
    receive,
    record_channels,
    until_followed,
)


class Process:
    """A process with a socket, and what it received."""

    def __init__(self) -> None:
        self.received: LocalBatches = []
        self.unsent: list[tuple[str, LocalBatches]] = []
        self.sockets: LocalSockets

    async def open(self, folder: Path, process_id: str) -> bool:
        """Open the socket. Return whether the folder can be used."""
        sockets = await LocalSockets.open(folder, process_id, self._on_message)
        if sockets is None:
            return False
        self.sockets = sockets
        sockets.on_unsent = lambda process_id, batches: self.unsent.append((process_id, batches))
        return True

    async def until_received(self, count: int) -> None:
        """Wait for this many batches."""
        async with asyncio.timeout(60):
            while len(self.received) < count:
                await asyncio.sleep(0.001)

    def _on_message(self, payload: bytes) -> None:
        self.received += [(row, found) for row, found in decode_batches(payload) if found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "sockets"


async def opened(folder: Path, process_id: str) -> Process:
    process = Process()
    assert await process.open(folder, process_id)
    return process


async def test_batches_arrive_in_order(folder: Path) -> None:
    one, other = await opened(folder, "one"), await opened(folder, "other")
    sent = [(n % 3, padded(n, 1_000)) for n in range(200)]
    for row, each in sent:
        assert one.sockets.send("other", row, each)
        await asyncio.sleep(0)
    await other.until_received(len(sent))
    assert other.received == sent and not one.unsent
    assert other.sockets.send("one", 5, padded(0, 10)), "a process sends and receives"
    await one.until_received(1)
    await one.sockets.close()
    await other.sockets.close()
    assert not list(folder.iterdir())


async def test_process_of_another_host_has_no_socket(folder: Path) -> None:
    one = await opened(folder, "one")
    assert not one.sockets.send("other", 1, batch(2))
    await one.sockets.close()


async def test_batches_for_a_process_that_was_killed_are_handed_back(folder: Path) -> None:
    one = await opened(folder, "one")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead.events"))
    assert one.sockets.send("dead", 1, batch(2))
    async with asyncio.timeout(60):
        while not one.unsent:
            await asyncio.sleep(0.001)
    assert one.unsent == [("dead", [(1, batch(2))])]
    assert not one.sockets.send("dead", 1, batch(12)), "its socket is deleted"
    await one.sockets.close()


async def test_failed_connection_is_tried_again_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example if a process has no file descriptors left for a moment."""
    one, other = await opened(folder, "one"), await opened(folder, "other")
    with monkeypatch.context() as patch:
        patch.setattr(local_sockets, "_CONNECT_S", 0.0)
        assert one.sockets.send("other", 1, batch(2))
        async with asyncio.timeout(60):
            while not one.unsent:
                await asyncio.sleep(0.001)
    assert not one.sockets.send("other", 1, batch(12))
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + 60)
    assert one.sockets.send("other", 1, batch(22))
    await other.until_received(1)
    assert other.received == [(1, batch(22))]
    await one.sockets.close()
    assert not one.sockets.send("other", 1, batch(32)), "it is closed"
    await other.sockets.close()


async def test_sockets_of_killed_processes_are_deleted(folder: Path) -> None:
    living = await opened(folder, "living")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead.events"))
    new = await opened(folder, "new")
    assert {path.name for path in folder.iterdir()} == {"living.events", "new.events"}
    await new.sockets.close()
    await living.sockets.close()


async def test_receiver_that_does_not_read_gets_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sockets, "_MAX_UNSENT_BYTES", 100_000)
    one = await opened(folder, "one")
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(folder / "stopped.events"))
        stopped.listen()
        for n in range(100):
            assert one.sockets.send("stopped", 1, padded(n, 50_000))
            for _ in range(10):
                await asyncio.sleep(0)
        await one.sockets.close()
        reader, _ = stopped.accept()
        with reader:  # in a thread: the loop sends the rest and closes the connection
            pieces = iter(partial(reader.recv, 100_000), b"")
            received = await asyncio.to_thread(lambda: sum(map(len, pieces)))
    assert received < 2_000_000, "of 5,000,000"


@pytest.mark.parametrize("fault", ["other users may enter it", "a file", "a long path"])
async def test_unusable_folder_is_not_used(folder: Path, fault: str) -> None:
    if fault == "a file":
        folder.write_text("")
    elif fault == "a long path":
        folder = folder / ("x" * 120)
    else:
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
    assert not await Process().open(folder, "one")


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

    monkeypatch.setattr(local_sockets, "FrameConnection", Recorded)
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
                for path in folder.glob("*.events"):
                    path.unlink()
                for connection in made:
                    connection.close()
                    await asyncio.sleep(0.01)
        await reading
