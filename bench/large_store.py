"""A PostgreSQL store with ten million responses: plans and times of its statements, and how fast
expired responses are deleted.

``python -m bench.large_store [RESPONSES [SECONDS]]``: seeding ends after so many seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from random import Random
from typing import Any

from msgspec import Struct

from tests.real.postgres import Postgres, postgres

from .process import family_cpu_s
from .table import Line, median, show

_RESPONSES, _SEED_S = 10_000_000, 1_200
#: Responses that one statement inserts, of which every tenth has a run; turns of a conversation.
_STEP, _TURNS = 100_000, 10
#: Tenants; the first one has half of the responses.
_TENANTS = 100
#: Calls of each kind, from whose statements the slowest are explained.
_CALLS = 20
#: Tables with fewer rows may be read whole.
_SMALL_ROWS = 10_000
_SWEPT = 60_000
_SETTINGS = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "1GB",
    "max_wal_size": "8GB",
    "synchronous_commit": "off",
    "autovacuum": "off",
}

_ID = "md5(n::text)"
_TENANT = f"CASE WHEN n / {_TURNS} % 2 = 0 THEN 't0' ELSE 't' || n / {_TURNS} % {_TENANTS} END"
#: Created in the order of n, a thousand a second. $1: the first one, $2: the time of the first one.
_SEED = (
    f"""
    INSERT INTO responses (seq, tenant, id, parent, created_at, bytes, body, input, output, base,
        tokens, fingerprint)
    OVERRIDING SYSTEM VALUE
    SELECT n, {_TENANT}, 'resp_' || {_ID},
        CASE WHEN n % {_TURNS} > 0 THEN 'resp_' || md5((n - 1)::text) END,
        $2 + n / 1000, 1500,
        convert_to(format('{{"id":"resp_%s","object":"response","created_at":%s,"model":"m",'
            '"status":"completed","output":[],"usage":null,"previous_response_id":null,'
            '"background":%s}}', {_ID}, $2 + n / 1000, (n % 10 = 0)::text), 'UTF8'),
        convert_to(format('[{{"type":"message","id":"msg_i%s","role":"user","content":'
            '[{{"type":"input_text","text":"question %s"}}]}}]', n, n), 'UTF8'),
        convert_to(format('[{{"type":"message","id":"msg_o%s","role":"assistant","status":'
            '"completed","content":[{{"type":"output_text","text":"%s","annotations":[]}}]}}]',
            n, repeat({_ID}, 4)), 'UTF8'),
        0, convert_to(repeat({_ID}, 6), 'UTF8'), 'f'
    FROM generate_series($1::bigint, $1::bigint + {_STEP} - 1) AS n
    """,
    f"""
    INSERT INTO summaries
        (seq, tenant, status, model, parent, background, failed, tools, text, body)
    SELECT n, {_TENANT}, CASE WHEN n % 97 = 0 THEN 'failed' ELSE 'completed' END,
        'model-' || n % 7, CASE WHEN n % {_TURNS} > 0 THEN 'resp_' || md5((n - 1)::text) END,
        n % 10 = 0, n % 97 = 0, CASE WHEN n % 50 = 0 THEN 'web_search ' ELSE '' END,
        'question ' || n || ' ' || {_ID},
        convert_to(format('{{"id":"resp_%s","created_at":%s,"status":"completed","model":"m"}}',
            {_ID}, $2 + n / 1000), 'UTF8')
    FROM generate_series($1::bigint, $1::bigint + {_STEP} - 1) AS n
    """,
    f"""
    INSERT INTO items (tenant, id, response)
    SELECT {_TENANT}, CASE WHEN k = 0 THEN 'msg_i' ELSE 'msg_o' END || n, n
    FROM generate_series($1::bigint, $1::bigint + {_STEP} - 1) AS n, generate_series(0, 1) AS k
    WHERE $2::bigint > 0
    """,
    f"""
    INSERT INTO runs (seq, tenant, id, model, request, prompt, epoch, ended_at)
    OVERRIDING SYSTEM VALUE
    SELECT n / 10 + 1, {_TENANT}, 'resp_' || {_ID}, 'm', '', '', 1, $2 + n / 1000
    FROM generate_series($1::bigint, $1::bigint + {_STEP} - 1, 10) AS n
    """,
    f"""
    INSERT INTO batches (run, first, count, lines, tokens)
    SELECT n / 10 + 1, k * 20, 20, convert_to(repeat({_ID}, 10), 'UTF8'), ''
    FROM generate_series($1::bigint, $1::bigint + {_STEP} - 1, 10) AS n, generate_series(0, 2) AS k
    WHERE $2::bigint > 0
    """,
    """
    INSERT INTO conversations (seq, tenant, id, body) OVERRIDING SYSTEM VALUE
    SELECT n, 't0', 'conv_' || n, convert_to('{"id":"conv_' || n || '","created_at":1}', 'UTF8')
    FROM generate_series($1::bigint, $1::bigint + 999) AS n WHERE $2::bigint > 0
    """,
    """
    INSERT INTO conversation_items (conversation, tenant, id, kind, body)
    SELECT n, 't0', 'msg_c' || n || '_' || k, 'user', convert_to(
        format('{"type":"message","id":"msg_c%s_%s","role":"user","content":[]}', n, k), 'UTF8')
    FROM generate_series($1::bigint, $1::bigint + 999) AS n, generate_series(0, 19) AS k
    WHERE $2::bigint > 0
    """,
)
_INDEXES = """
SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relname = ANY ('{responses,summaries,items,runs,conversations,conversation_items}')
AND t.relnamespace = 'antiphon'::regnamespace AND NOT i.indisprimary
"""


class _Statement(Struct):
    """A statement of the store, with the longest time that a client measured and the arguments of
    this call."""

    elapsed_ms: float
    arguments: Sequence[Any]


def large_store(responses: int = _RESPONSES, seconds: float = _SEED_S) -> Iterator[Line]:
    """Seed a store, explain and time its statements, and sweep it."""
    with postgres(**_SETTINGS) as server:
        yield from asyncio.run(_measure(server, responses, seconds))


async def _measure(server: Postgres, responses: int, seconds: float) -> list[Line]:
    import asyncpg

    from antiphon.store.postgres.store import PostgresStore

    url = await server.create_database()
    connection = await asyncpg.connect(url)
    store = await PostgresStore.open(url, connections=1)
    try:
        started = time.monotonic()
        now = int(time.time())
        seeded = await _seed(connection, store, responses, seconds, now)
        spent = time.monotonic() - started
        size = await connection.fetchval("SELECT pg_database_size(current_database())")
        what = f"{seeded / 1e6:.1f} million responses"
        lines = [
            Line(what=f"{what}: size of the database", value=size / 2**30, unit="GB",
                 note=f"seeded in {spent:.0f} s")
        ]  # fmt: skip
        lines += await _explain(connection, store, seeded, what)
        lines += await _sweep(connection, server, store, now, what)
        return lines
    finally:
        await connection.close()
        await store.close()


async def _seed(connection: Any, store: Any, responses: int, seconds: float, now: int) -> int:
    """Insert responses with all their rows in other tables. Returns the number of responses."""
    from antiphon.store.base import Retention

    await connection.execute("SET search_path TO antiphon; SET session_replication_role TO replica")
    await connection.execute(
        "SELECT setval('runs_seq_seq', $1)".replace("$1", str(responses // 10))
    )
    await store.sweep(Retention(), now)  # creates the partitions
    indexes = await connection.fetch(_INDEXES)
    for name, _ in indexes:
        await connection.execute(f"DROP INDEX {name}")
    first, end = 0, time.monotonic() + 0.6 * seconds  # the rest is for the indexes
    start = now - responses // 1000
    while first < responses and time.monotonic() < end:
        for number, statement in enumerate(_SEED):
            at = first if number < 5 else first // 100 + 1
            await connection.execute(statement, at, start, timeout=600)
        first += _STEP
        print(f"{first:,} responses", file=sys.stderr, flush=True)
    for _, definition in indexes:
        await connection.execute(definition, timeout=3600)
    await connection.execute(
        "INSERT INTO response_sums"
        " SELECT tenant, count(*), sum(bytes) FROM responses GROUP BY tenant",
        timeout=600,
    )
    for table in ("responses", "runs", "conversations"):
        await connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'seq'), max(seq)) FROM {table}"
        )
    await connection.execute("RESET session_replication_role")
    await connection.execute("VACUUM ANALYZE", timeout=3600)
    return first


# --- statements ----------------------------------------------------------------------------------


async def _explain(connection: Any, store: Any, seeded: int, what: str) -> list[Line]:
    import asyncpg

    statements = await _record(store, seeded)
    names = {query: name for name, query in store._pool.queries.items()}
    large = {
        row[0]
        for row in await connection.fetch(
            "SELECT relname FROM pg_class WHERE reltuples > $1", _SMALL_ROWS
        )
    }
    scans: list[str] = []
    times: list[tuple[float, str]] = []
    for query, statement in statements.items():
        if (name := names.get(query)) is None:
            continue  # of a transaction
        generic = await _generic_plan(connection, query)
        plan: Any = []
        elapsed = [statement.elapsed_ms]
        with suppress(asyncpg.UniqueViolationError):  # what was inserted cannot be inserted again
            for _ in range(3):
                plan = await _analyze(connection, query, statement.arguments)
                elapsed.append(plan[0]["Execution Time"])
        found = {*_scanned(generic), *_scanned(plan)} & large
        scans += [f"{name} ({table})" for table in sorted(found)]
        times.append((min(elapsed), name))
        note = f"{name}: {elapsed[0]:.1f} ms at the client, {min(elapsed):.2f} ms"
        print(note, file=sys.stderr, flush=True)
    slowest, name = max(times)
    return [
        Line(what=f"{what}: statements that read a large table whole", value=len(scans), unit="",
             at_most=0, note=", ".join(scans) or f"of {len(times)}"),
        Line(what=f"{what}: slowest statement", value=slowest, unit="ms", at_most=50, note=name),
    ]  # fmt: skip


async def _analyze(connection: Any, query: str, arguments: Sequence[Any]) -> Any:
    """Execute a statement, undo it, and return its plan."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        ((plan,),) = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *arguments)
        return json.loads(plan)
    finally:
        await transaction.rollback()


async def _generic_plan(connection: Any, query: str) -> Any:
    """Return the plan for any arguments, which PostgreSQL may use after some executions."""
    await connection.execute("SET plan_cache_mode TO force_generic_plan")
    await connection.execute(f"PREPARE asked AS {query}")
    count = len(set(re.findall(r"\$\d+", query)))
    given = f"({', '.join(['NULL'] * count)})" if count else ""
    ((plan,),) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE asked{given}")
    await connection.execute("DEALLOCATE asked; RESET plan_cache_mode")
    return json.loads(plan)


def _scanned(plan: Any) -> Iterator[str]:
    """Yield the tables that a plan reads whole."""
    if isinstance(plan, list):
        for each in plan:
            yield from _scanned(each)
    elif isinstance(plan, dict):
        if plan.get("Node Type") == "Seq Scan":
            yield plan["Relation Name"]
        for value in plan.values():
            if isinstance(value, (list, dict)):
                yield from _scanned(value)


async def _record(store: Any, seeded: int) -> dict[str, _Statement]:
    """Call the store as servers do, and return its statements."""
    statements: dict[str, _Statement] = {}

    def on_query(record: Any) -> None:
        known = statements.get(record.query)
        if known is None or record.elapsed * 1000 > known.elapsed_ms:
            statements[record.query] = _Statement(record.elapsed * 1000, record.args)

    with ExitStack() as stack:
        for holder in store._pool._connections._pool._holders:
            if holder._con is not None:
                stack.enter_context(holder._con.query_logger(on_query))
        await _call(store, seeded)
    return statements


async def _call(store: Any, seeded: int) -> None:
    from antiphon.store.records import (
        Append,
        ClaimQuery,
        ItemQuery,
        Reservation,
        ResponseQuery,
        RunEnd,
    )
    from antiphon.testing.store_checks.runs import batch, begin_run, ended_response

    random = Random(1)
    for number in range(_CALLS):
        n = random.randrange(seeded // _TURNS) * _TURNS + _TURNS - 1
        tenant = "t0" if n // _TURNS % 2 == 0 else f"t{n // _TURNS % _TENANTS}"
        response = f"resp_{_md5(n)}"
        assert await store.load(tenant, response) is not None
        chain = await store.load_chain(tenant, response)
        assert chain is not None and len(chain) == _TURNS
        assert await store.load_item(tenant, f"msg_o{n}") is not None
        await store.list_responses(tenant, ResponseQuery(limit=20))
        await store.list_responses(tenant, ResponseQuery(limit=20, after=response))
        await store.list_responses(tenant, ResponseQuery(limit=20, newest_first=False))
        await store.usage("t0")
        await store.reserve_response(
            Reservation(
                tenant="t0",
                response_id=f"resp_{number}",
                owner="o",
                max_responses=10**9,
                max_bytes=10**15,
                lease_s=5,
            )
        )
        await store.runs.events(tenant, f"resp_{_md5(n - 9)}", -1, limit=100)
        conversation = f"conv_{1 + n % (seeded // 100)}"
        await store.load_conversation("t0", conversation)
        await store.list_conversation_items("t0", conversation, ItemQuery(limit=10))
        await store.list_conversations("t0", after=conversation, limit=20)
        claim = await begin_run(store, f"bench{number}")
        await store.runs.append((Append(claim, batch(2, 20)),))
        await store.runs.heartbeat(ClaimQuery(owner="o"))
        await store.runs.end(
            claim, RunEnd(stored=ended_response(f"bench{number}"), batch=batch(22, 1))
        )
        await store.delete("t", f"resp_bench{number}")
        assert await store.delete(tenant, response)
    # What matches nothing is the dearest.
    for query in (
        {"status": "queued"},
        {"model": "x"},
        {"previous_response_id": "resp_x"},
        {"text": "nowhere"},
    ):
        await store.list_responses("t0", ResponseQuery(limit=20, **query))


def _md5(n: int) -> str:
    from hashlib import md5

    return md5(str(n).encode(), usedforsecurity=False).hexdigest()


# --- retention -----------------------------------------------------------------------------------


async def _sweep(connection: Any, server: Postgres, store: Any, now: int, what: str) -> list[Line]:
    """Delete a minute of a thousand responses a second. Their runs' logs are not deleted here."""
    from antiphon.store.base import Retention

    oldest = await connection.fetchval("SELECT min(created_at) FROM antiphon.responses")
    bounds = Retention(max_age_s=now - oldest - _SWEPT / 1000, max_log_age_s=None)
    names = {query: name for name, query in store._pool.queries.items()}
    elapsed: dict[str, list[float]] = {}

    def on_query(record: Any) -> None:
        name = names.get(record.query, record.query)
        elapsed.setdefault(name, []).append(record.elapsed * 1000)

    cpu, started = family_cpu_s(server.pid), time.monotonic()
    with ExitStack() as stack:
        for holder in store._pool._connections._pool._holders:
            if holder._con is not None:
                stack.enter_context(holder._con.query_logger(on_query))
        found = await store.sweep(bounds, now)
    spent, cpu = time.monotonic() - started, family_cpu_s(server.pid) - cpu
    for name, times in elapsed.items():
        note = f"sweep: {name}: {len(times)} times, median {median(times):.2f} ms, {max(times):.1f}"
        print(note, file=sys.stderr, flush=True)
    slowest, name = max((median(times), name) for name, times in elapsed.items())
    cpu_ms = cpu / found * 1000
    return [
        Line(what=f"{what}: expired responses deleted a second", value=found / spent, unit="/s",
             at_least=1000, note=f"{found} of them, {cpu_ms:.2f} ms of the database's CPU each"),
        Line(what=f"{what}: slowest statement of a sweep", value=slowest, unit="ms", at_most=50,
             note=name),
    ]  # fmt: skip


if __name__ == "__main__":
    show(large_store(*map(int, sys.argv[1:])))
