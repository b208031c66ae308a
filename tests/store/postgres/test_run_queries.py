"""Queries that look up runs by their key, whatever the planner's statistics say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.store import open_store
from antiphon.testing.postgres import Postgres
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
    "follow": (("process", TENANTS, IDS, 60.0), SEVERAL),
    "end_run": (("t", "resp_7", 0), 1),
    "take_over_run": (("t", "resp_7"), 1),
    "history": (("t", "resp_7"), 1),
    "events": (("t", "resp_7", 0, 100, 1 << 20), 1),
    "lock_conversation": (("t", "conv_a", "resp_7", "owner", 60.0), 1),
    "release_lock": (("t", "conv_a", "resp_7"), 1),
}


def discarded_rows(plan: dict[str, Any]) -> Iterator[int]:
    """Yield how many rows each step of an executed plan read in vain."""
    names = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    yield int(sum(plan.get(name, 0) for name in names) * plan["Actual Loops"])
    for step in plan.get("Plans", ()):
        yield from discarded_rows(step)


@pytest.mark.parametrize("statistics", ["none", "all runs have ended"])
async def test_runs_are_looked_up_by_key(database: Postgres, statistics: str) -> None:
    """A query does not read all runs that have not ended, even if the planner expects few."""
    url = await database.migrated()
    store: Any = await open_store(url)
    async with connected(url) as connection:
        await connection.execute("SET search_path TO antiphon")
        if statistics != "none":
            await connection.execute(INSERT_RUNS, "resp_ended_", 1, UNENDED)
            await connection.execute("ANALYZE runs")
        await connection.execute(INSERT_RUNS, "resp_", None, UNENDED)
        for name, (arguments, count) in LOOKUPS.items():
            query = f"EXPLAIN (ANALYZE, FORMAT JSON) {store._pool.queries[name]}"
            async with connection.transaction():
                plan = json.loads(await connection.fetchval(query, *arguments))
            assert max(discarded_rows(plan[0]["Plan"])) < 50 * count, name
    await store.close()
