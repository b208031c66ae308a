"""Partitions of the event table: created ahead, dropped whole, and never in the way of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.records import Append, RunEnd
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response, numbers
from tests.real.postgres import Postgres

#: Runs in a partition.
RUNS = 16_384
DAY_S = 86_400
EXPIRING = Retention(max_log_age_s=60)


class Opened:
    """A store, and a connection to look into its tables."""

    def __init__(self, store: Store, connection: asyncpg.Connection) -> None:
        self.store = store
        self.connection = connection

    async def partitions(self) -> set[str]:
        """The names of all partitions."""
        rows = await self.connection.fetch(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'batches'::regclass"
        )
        return {row[0] for row in rows}

    async def batches(self, table: str = "batches") -> int:
        """The number of rows in a table of batches."""
        return int(await self.connection.fetchval(f"SELECT count(*) FROM {table}"))

    async def skip_runs(self, count: int) -> None:
        """Go on as if so many runs had been created."""
        await self.connection.execute("SELECT setval('runs_seq_seq', $1)", count)

    async def end_run(self, name: str) -> None:
        """Create a run and end it."""
        claim = await begin_run(self.store, name)
        assert await self.store.runs.end(claim, RunEnd(stored=ended_response(name), batch=batch(2)))


@asynccontextmanager
async def opened(database: Postgres) -> AsyncIterator[Opened]:
    url = await database.create_migrated_database()
    store = await open_store(url)
    connection = await asyncpg.connect(url)
    await connection.execute("SET search_path TO antiphon")
    try:
        async with asyncio.timeout(60):
            yield Opened(store, connection)
    finally:
        await connection.close()
        await store.close()
        database.give_back()


async def test_expired_partition_is_dropped_whole(database: Postgres) -> None:
    async with opened(database) as it:
        await it.end_run("a")
        await it.skip_runs(RUNS)
        await it.store.sweep(EXPIRING, 1_000)
        assert {"batches_0", f"batches_{RUNS}", f"batches_{RUNS + RUNS}"} <= await it.partitions()
        claim = await begin_run(it.store, "b")
        await it.store.sweep(EXPIRING, 2_000)
        assert "batches_0" not in await it.partitions()
        assert await it.connection.fetchval("SELECT count(*) FROM runs") == 1
        assert await it.store.runs.append((Append(claim, batch(2)),)) == frozenset()
        assert await numbers(it.store, "b") == [0, 1, 2]
        assert await it.batches(f"batches_{RUNS}") == 2, "of the second partition"


async def test_living_run_keeps_its_partition(database: Postgres) -> None:
    async with opened(database) as it:
        await begin_run(it.store, "lives")
        await it.end_run("a")
        await it.store.sweep(EXPIRING, 1_000)
        await it.skip_runs(RUNS)
        await it.store.sweep(EXPIRING, 2_000)
        assert await it.store.runs.events("t", "resp_a", -1, limit=9) is None
        assert await it.batches() == 3, "they wait for their partition to be dropped"
        await it.store.sweep(EXPIRING, 2_000 + DAY_S)
        assert await it.batches() == 1, "only those of the living run"
        assert await numbers(it.store, "lives") == [0, 1]


async def test_deleted_events_do_not_wait_for_their_partition(database: Postgres) -> None:
    async with opened(database) as it:
        await begin_run(it.store, "lives")
        await it.end_run("a")
        assert await it.store.delete("t", "resp_a")
        await it.store.sweep(EXPIRING, 1_000)
        assert await it.batches() == 1


async def test_events_without_a_partition_are_stored_and_expire(database: Postgres) -> None:
    async with opened(database) as it:
        await it.store.sweep(EXPIRING, 1_000)
        await it.skip_runs(100 * RUNS)
        await it.end_run("a")
        assert await it.batches("batches_rest") == 2
        assert await numbers(it.store) == [0, 1, 2]
        await it.store.sweep(EXPIRING, 2_000)
        assert f"batches_{101 * RUNS}" in await it.partitions(), "behind what is stored"
        await it.store.sweep(EXPIRING, 3_000)
        await it.store.sweep(EXPIRING, 3_000 + DAY_S)
        assert await it.batches() == 0


async def test_busy_table_is_left_for_the_next_sweep(database: Postgres) -> None:
    async with opened(database) as it:
        await it.end_run("a")
        await it.skip_runs(RUNS)
        await it.store.sweep(EXPIRING, 1_000)
        async with it.connection.transaction():
            await it.connection.execute("SELECT FROM batches")
            await it.store.sweep(EXPIRING, 2_000)
            await begin_run(it.store, "b")
        assert "batches_0" in await it.partitions()
        await it.store.sweep(EXPIRING, 3_000)
        assert "batches_0" not in await it.partitions()


async def test_many_partitions_become_larger(database: Postgres) -> None:
    async with opened(database) as it:
        for number in range(40):
            await it.skip_runs(1 + number * 8 * RUNS)
            await it.store.sweep(EXPIRING, 1_000)
        assert len(await it.partitions()) < 80


async def test_processes_sweep_at_once(database: Postgres) -> None:
    async with opened(database) as it:
        await it.end_run("a")
        await it.skip_runs(RUNS)
        await it.store.sweep(EXPIRING, 1_000)
        await asyncio.gather(*(it.store.sweep(EXPIRING, 2_000) for _ in range(4)))
        await it.store.sweep(EXPIRING, 2_000)
        assert "batches_0" not in await it.partitions()
