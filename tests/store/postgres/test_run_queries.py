"""Queries that look up runs by their key, whatever the planner's statistics say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import Append
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, begin_run
from tests.real.postgres import Postgres
from tests.store.postgres.test_pool import connected

#: Runs that have not ended, and how many of them a query for several asks for.
UNENDED, SEVERAL = 300, 20
IDS = [f"resp_{n}" for n in range(SEVERAL)]
TENANTS = ["t"] * SEVERAL
ROWS = [*range(1, SEVERAL + 1)]

INSERT_RUNS = """
INSERT INTO runs (tenant, id, model, request, prompt, ended_at)
SELECT 't', $1 || n, 'm', '', '', $2 FROM generate_series(0, $3 - 1) AS n
"""

#: The arguments of queries, and the number of runs that they look up.
LOOKUPS: dict[str, tuple[tuple[object, ...], int]] = {
    "append": (
        (
            "process",
            ROWS,
            [0] * SEVERAL,
            ROWS,
            [0] * SEVERAL,
            [1] * SEVERAL,
            [b"{}\n"] * SEVERAL,
            [b""] * SEVERAL,
            [1.0] * SEVERAL,
        ),
        SEVERAL,
    ),
    "append_one": (("process", 7, 0, 0, 1, b"{}\n", b"", 1.0), 1),
    "follow": (("process", TENANTS, IDS, 60.0), SEVERAL),
    "end_run": (("t", "resp_7", 0, 0), 1),
    "take_over_run": (("t", "resp_7"), 1),
    "history": (("t", "resp_7"), 1),
    "events": (("t", "resp_7", 0, 100, 1 << 20), 1),
    "lock_conversation": (("t", "conv_a", "resp_7", "owner", 60.0), 1),
    "release_lock": (("t", "conv_a", "resp_7"), 1),
}


def discarded_rows(plan: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each step of an executed plan read and discarded."""
    for name, count in plan.items():
        if name.startswith("Rows Removed by"):
            yield int(count * plan["Actual Loops"])
    for step in plan.get("Plans", ()):
        yield from discarded_rows(step)


@pytest.mark.parametrize("statistics", ["none", "all runs have ended"])
async def test_runs_are_looked_up_by_key(database: Postgres, statistics: str) -> None:
    """A query does not read all runs that have not ended, even if the planner expects few."""
    url = await database.create_migrated_database()
    pool = await ConnectionPool.open(url)
    async with connected(url) as connection:
        await connection.execute("SET search_path TO antiphon")
        if statistics != "none":
            await connection.execute(INSERT_RUNS, "resp_ended_", 1, UNENDED)
            await connection.execute("ANALYZE runs")
        await connection.execute(INSERT_RUNS, "resp_", None, UNENDED)
        for name, (arguments, count) in LOOKUPS.items():
            query = f"EXPLAIN (ANALYZE, FORMAT JSON) {pool.queries[name]}"
            async with connection.transaction():
                plan = json.loads(await connection.fetchval(query, *arguments))
            assert max(discarded_rows(plan[0]["Plan"]), default=0) < 50 * count, name
    await pool.close()


async def test_frequent_statements_use_generic_plans(database: Postgres) -> None:
    """PostgreSQL plans a statement anew for each execution if a custom plan for the arguments seems
    cheaper than the generic plan. It decides after five executions."""
    url = await database.create_migrated_database()
    pool = await ConnectionPool.open(url, connections=1)
    store = PostgresStore(pool)
    claims = [await begin_run(store, name) for name in "ab"]
    for n in range(30):
        for count in (1, 2):
            first = 2 + 10 * (2 * n + count)
            appends = [Append(claim, batch(first, 10)) for claim in claims[:count]]
            assert await store.runs.append(appends) == frozenset()
        await pool.rows("follow", "other", ["t"], ["resp_a"], 60.0)
        await pool.rows("new_batches", [claims[0].row], [first])
        await store.save("t", make_response(str(n)))
        await store.load("t", f"resp_{n}")
    query = "SELECT statement, custom_plans FROM pg_prepared_statements"
    async with pool.transaction() as transaction:
        custom = dict(await transaction.fetch(query))
    for name in ("append", "append_one", "follow", "new_batches", "save", "load"):
        assert custom[pool.queries[name]] <= 5, name
    await store.close()
