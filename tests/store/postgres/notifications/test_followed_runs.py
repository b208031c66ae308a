"""Runs that one process writes and another one follows, over PostgreSQL."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.common.peers import Peers
from antiphon.store.common.subscriptions import Subscriptions
from antiphon.store.postgres import bus as bus_module
from antiphon.store.postgres.bus import BusError, Handlers
from antiphon.store.postgres.notifications import followed_runs, listener
from antiphon.store.postgres.notifications.batch_notices import (
    BatchNotifier,
    decode_batches,
    encode_batches,
)
from antiphon.store.postgres.notifications.followed_runs import FollowedRuns
from antiphon.store.postgres.notifications.listener import NOTICES
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.records import Append, ClaimQuery, EventBatch
from antiphon.testing.store_checks.runs import batch, begin_run
from tests.real.postgres import Postgres
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
        async with asyncio.timeout(60):
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


def record_channels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the channels of all notifications over databases are added."""
    sent: list[str] = []
    rows = ConnectionPool.rows

    async def record(pool: ConnectionPool, name: str, *arguments: Any) -> list[Any]:
        if name == "notify_many":
            sent.extend(arguments[0])
        return await rows(pool, name, *arguments)

    monkeypatch.setattr(ConnectionPool, "rows", record)
    return sent


async def until_followed(url: str) -> None:
    """Wait until the run is marked in the store."""
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        while not await connection.fetchval(
            "SELECT count(*) FROM antiphon.runs WHERE followed_until > now()"
        ):
            await asyncio.sleep(0)
    await connection.close()


def test_payloads_hold_lines_that_fit() -> None:
    batches = [(n, padded(n, size)) for n, size in enumerate((10, 4_000, 3_900, 20_000, 7_000, 0))]
    batches.append((7, EventBatch(first=3, count=2, lines='{"n":"é"}\n{"n":"…"}\n'.encode())))
    payloads = list(encode_batches(batches))
    assert all(len(payload) < 8_000 for payload in payloads) and len(payloads) < 5
    found = [each for payload in payloads for each in decode_batches(payload)]
    assert found == [(row, None if row == 3 else sent) for row, sent in batches]


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_database_sees_no_events_that_are_encrypted(is_encrypted: bool) -> None:
    """PostgreSQL keeps notifications in files."""

    class Pool:
        sent = ""

        async def rows(self, name: str, channels: list[str], payloads: list[str]) -> None:
            self.sent += "".join(payloads)

    pool: Any = Pool()
    pool.is_encrypted = is_encrypted
    notifier = BatchNotifier(pool, Peers("one", lambda *message: None), None)
    for n in range(3):
        notifier.send("process", 7, EventBatch(first=n, count=1, lines=b"the secret plan\n"))
    await notifier.close()
    assert ("secret" in pool.sent) is not is_encrypted
    found = decode_batches(pool.sent.encode())
    assert [row for row, _ in found] == [7, 7, 7]


@pytest.mark.parametrize("size", [10, 20_000])
async def test_follower_receives_batches_without_a_look(
    database: Postgres, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The lines of short batches come with the notification; long ones are fetched."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(database.newest_url)
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
        monkeypatch.setattr(runs.notifications, "publish_to", lambda *_: None)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(database.newest_url)
        for n in range(2, 7):
            await one.runs.append((Append(claim, batch(n)),))
        await reading


class QueryLog:
    """A pool that records the names of queries. Its only run has row 7 and no new batches."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def rows(self, name: str, *arguments: object) -> list[tuple[int, int, int]]:
        self.names.append(name)
        return [(1, 7, 1)] if name == "follow" else []


async def test_look_fetches_only_runs_that_did_not_grow() -> None:
    """A run that grows needs no query: the batch after a lost notification shows the gap."""
    pool: Any = QueryLog()
    subscriptions = Subscriptions()
    followed = followed_runs.FollowedRuns(pool, subscriptions, "process")
    followed.on_connected()
    with subscriptions.subscribe("t", "resp_a") as tail:
        followed.follow(("t", "resp_a"))
        async with asyncio.timeout(60):
            while not tail.is_stale:
                await asyncio.sleep(0)
        (payload,) = encode_batches([(7, padded(2, 10))])
        followed.on_batches(payload)
        await followed.look()
        await asyncio.sleep(0)
        assert pool.names == ["follow"]
        await followed.look()
        await asyncio.sleep(0)
        assert pool.names == ["follow", "new_batches"]
    await followed.close()


async def test_work_that_has_not_begun_is_cancelled_at_close() -> None:
    pool: Any = None
    followed = followed_runs.FollowedRuns(pool, Subscriptions(), "process")
    followed.on_connected()
    followed.follow(("t", "resp_a"))
    await followed.close()
    gc.collect()  # a coroutine that nobody awaits gives a warning


async def test_next_owner_notifies_the_followers(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two(database) as (one, other, _):
        await begin_run(one)
        third = await open_store(database.newest_url)
        reading = asyncio.create_task(receive(other, 2))
        await until_followed(database.newest_url)
        (claim,) = await third.runs.claim(
            ClaimQuery(owner="third", models=["m"], limit=1, lease_s=0)
        )
        await third.runs.append((Append(claim, batch(2)),))
        await reading
        await third.close()


async def test_append_notifies_nobody_if_nobody_follows(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        with one.runs.subscribe("t", "resp_a"), other.runs.subscribe("t", "resp_a"):
            sent = record_channels(monkeypatch)
            await one.runs.append((Append(claim, batch(2)),))
            await one.close()  # sends what is left to send
            assert set(sent) <= {NOTICES}, "only of claimed runs"


# --- over a bus ----------------------------------------------------------------------------------


class FakeBus:
    """A bus in this process that treats messages as its ``fault`` says."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.handlers: list[Handlers] = []
        self.sent: list[tuple[str, bytes]] = []

    async def connect(self, handlers: Handlers) -> FakeSession:
        """Listen."""
        self.handlers.append(handlers)
        return FakeSession(self)

    def deliver(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Call the handlers of the channels."""
        for channel, message in messages:
            for handlers in self.handlers:
                if channel in handlers:
                    handlers[channel](message)


class FakeSession:
    """A connection to a ``FakeBus``."""

    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Deliver messages, or what the fault makes of them."""
        bus = self._bus
        bus.sent += messages
        if bus.fault == "refuses":
            raise BusError("not now")
        if bus.fault == "hangs":
            await asyncio.Future()
        if bus.fault == "repeats":
            bus.deliver(bus.sent)
        elif bus.fault == "reverses":
            bus.deliver(bus.sent[::-1])
        elif bus.fault == "forges":
            bus.deliver([(channel, message[:-3] + b"xx\n") for channel, message in messages])
        elif bus.fault == "nothing":
            bus.deliver(messages)

    async def wait_until_lost(self) -> None:
        """Never."""
        await asyncio.Future()

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def two_with_bus(
    database: Postgres, fault: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Store, Store, FakeBus]]:
    """Open two stores with one bus, and a follower of nothing else."""
    bus = FakeBus(fault)
    monkeypatch.setattr("antiphon.store.postgres.store.redis_connector", lambda url: bus.connect)
    url = await database.create_migrated_database()
    one, other = [await open_store(url, bus="fake://") for _ in range(2)]
    try:
        for store in (one, other):
            with store.runs.subscribe("t", "resp_none"):
                pass  # it listens from now on
        async with asyncio.timeout(60):
            while len(bus.handlers) < 2:
                await asyncio.sleep(0.01)
        yield one, other, bus
    finally:
        await one.close()
        await other.close()


async def follow_ten_batches(database: Postgres, one: Store, other: Store) -> list[EventBatch]:
    """Append ten batches to a run that the other store follows, and return what its reader gets."""
    claim = await begin_run(one)
    reading = asyncio.create_task(receive(other, 11))
    await until_followed(database.newest_url)
    for n in range(2, 12):
        await one.runs.append((Append(claim, padded(n, 20_000)),))
    return await reading


async def test_bus_brings_batches_without_a_look(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also long ones; nothing is sent over the database."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    async with two_with_bus(database, "nothing", monkeypatch) as (one, other, bus):
        channels = record_channels(monkeypatch)
        found = await follow_ten_batches(database, one, other)
        assert all(each.lines == padded(each.first, 20_000).lines for each in found)
        assert bus.sent and not channels


@pytest.mark.parametrize("fault", ["loses", "repeats", "reverses", "forges", "refuses", "hangs"])
async def test_faulty_bus_loses_and_doubles_nothing(
    database: Postgres, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", 0.05)
    monkeypatch.setattr(bus_module, "_SEND_S", 0.05)
    async with two_with_bus(database, fault, monkeypatch) as (one, other, _):
        found = await follow_ten_batches(database, one, other)
        numbers = [each.first for each in found]
        assert numbers == sorted(set(numbers)) and all(
            each.lines == padded(each.first, 20_000).lines for each in found
        )


def recorded_followed_runs(patch: pytest.MonkeyPatch) -> list[FollowedRuns]:
    """Return the list to which the ``FollowedRuns`` of each opened store is added."""
    made: list[FollowedRuns] = []

    def record(*arguments: Any) -> FollowedRuns:
        made.append(FollowedRuns(*arguments))
        return made[-1]

    patch.setattr(listener, "FollowedRuns", record)
    return made


async def test_signed_message_from_the_future_stops_no_reader(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a message says about a run is not believed beyond the next batch."""
    monkeypatch.setattr(followed_runs, "_LOOK_S", 0.05)
    made = recorded_followed_runs(monkeypatch)
    async with two_with_bus(database, "nothing", monkeypatch) as (one, other, _):
        claim = await begin_run(one)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(database.newest_url)
        followed = made[-1]
        async with asyncio.timeout(60):
            while not followed._keys:
                await asyncio.sleep(0.01)
        (row,) = followed._keys
        for payload in encode_batches([(row, padded(1_000, 10))]):
            followed.on_batches(payload)
        for n in range(2, 7):
            await one.runs.append((Append(claim, batch(n)),))
        await reading


async def test_followers_fetch_what_they_missed_when_the_bus_is_back(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_runs, "_LOOK_S", NEVER_S)
    made = recorded_followed_runs(monkeypatch)
    async with two_with_bus(database, "loses", monkeypatch) as (one, other, _):
        claim = await begin_run(one)
        reading = asyncio.create_task(receive(other, 6))
        await until_followed(database.newest_url)
        for n in range(2, 7):
            await one.runs.append((Append(claim, batch(n)),))
        followed = made[-1]
        async with asyncio.timeout(60):
            while not reading.done():  # it may follow only later
                followed.on_bus_connected()
                await asyncio.sleep(0.01)
        await reading
