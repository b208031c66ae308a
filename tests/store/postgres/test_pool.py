"""The PostgreSQL pool: permissions, URLs, outages, unusual texts."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from antiphon.errors import Overloaded, RunError, SetupError, StoreError
from antiphon.runs.background.event_log_writer import retry_until_available
from antiphon.store import open_store
from antiphon.store.files import FileLimits
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import Append, ClaimQuery, Reservation, RunEnd
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.queries import migrations, queries
from antiphon.store.upkeep.health import StoreHealth
from antiphon.testing.store_checks.files import make_file
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from antiphon.testing.store_checks.vectors import make_vector_store
from antiphon.wire.items import InputText, Message
from antiphon.wire.resources.conversations import ConversationResource
from tests.real.postgres import Postgres, postgres

ROOT = Path(__file__).parents[3]
#: Prints the number of each event once it is stored.
APPENDING = """
import asyncio, sys
from antiphon.store import open_store
from antiphon.store.records import Append
from antiphon.testing.store_checks.runs import batch, begin_run

async def main():
    store = await open_store(sys.argv[1])

    async def append(name, claim):
        for n in range(2, 100000):
            assert not await store.runs.append((Append(claim, batch(n)),))
            print(f"{name} {n}", flush=True)

    claims = {name: await begin_run(store, name) for name in "abcd"}
    await asyncio.gather(*(append(*each) for each in claims.items()))

asyncio.run(main())
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """Open a connection for the test."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


# --- addresses, rights, versions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://u:secret@127.0.0.1:1/d", "127.0.0.1:1/d"),
        ("postgresql://u:secret@127.0.0.1:port/d", "invalid URL"),
        ("postgresql://u:sec/secret@127.0.0.1:1/d", "127.0.0.1:1/d cannot be used"),
        ("postgresql://u:sec?secret@127.0.0.1:1/d", "PostgreSQL cannot be used"),
        ("postgresql://127.0.0.1:1/d?user=u&password=x@secret", "PostgreSQL cannot be used"),
        ("postgresql://u:secret@[127.0.0.1:1/d", "invalid URL"),
        ("postgres://u:secret@127.0.0.1:1/d?sslmode=odd", "sslmode"),
    ],
)
async def test_connection_error_is_one_line(url: str, says: str) -> None:
    with pytest.raises(SetupError) as refused:
        await open_store(url)
    announced_lines = str(refused.value)
    assert (
        says in announced_lines
        and "sec" not in announced_lines.replace("second", "")
        and "\n" not in announced_lines
    )


async def test_missing_database_is_named(database: Postgres) -> None:
    with pytest.raises(SetupError, match="nothing_here"):
        await open_store(database.url("nothing_here"))


async def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(SetupError, match=r"pip install .*\[postgres\]"):
        await open_store("postgresql://127.0.0.1:1/d")


async def test_missing_permissions_are_named_and_needed_only_once(database: Postgres) -> None:
    url = await database.create_database()
    guest = url.replace("postgres@", "guest@")
    async with connected(url) as connection:
        await connection.execute("CREATE ROLE guest LOGIN")
        with pytest.raises(SetupError, match="permission denied for database") as refused:
            await open_store(guest)
        assert "\n" not in str(refused.value)
        await (await open_store(url)).close()
        await connection.execute(
            "GRANT USAGE ON SCHEMA antiphon TO guest;"
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA antiphon TO guest"
        )
        store = await open_store(guest)  # there is nothing left to make
        await store.save("t", make_response("a"))
        assert await store.load("t", "resp_a") == make_response("a")
        await store.close()
        await connection.execute("DROP OWNED BY guest; DROP ROLE guest")


async def test_other_tables_are_not_touched(database: Postgres) -> None:
    url = await database.create_database()
    async with connected(url) as connection:
        for table in ("migrations", "responses", "runs"):
            await connection.execute(f"CREATE TABLE {table} (theirs INTEGER)")
        store = await open_store(url)
        await store.save("t", make_response("a"))
        await store.close()
        assert await connection.fetch("SELECT * FROM public.responses") == []


async def test_newer_database_is_refused(database: Postgres) -> None:
    url = await database.create_migrated_database()
    await (await open_store(url)).close()
    async with connected(url) as connection:
        await connection.execute("INSERT INTO antiphon.migrations VALUES ('9999_later')")
    with pytest.raises(SetupError, match="another version"):
        await open_store(url)


async def test_older_database_is_migrated(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    await store.save("t", make_response("a"))
    await store.close()
    step = "ALTER TABLE responses ADD COLUMN note TEXT; UPDATE responses SET note = 'old ' || id"
    for script in (f"{step}; UPDATE absent SET note = ''", step):
        added = (*migrations("antiphon.store.postgres"), ("0002_notes", script))
        with monkeypatch.context() as patch:
            patch.setattr("antiphon.store.postgres.pool.migrations", lambda package, m=added: m)
            if script is not step:
                with pytest.raises(SetupError, match="absent"):
                    await open_store(url)
                continue
            store = await open_store(url)
            assert await store.load("t", "resp_a") == make_response("a")
            await store.close()
    async with connected(url) as connection:
        notes = await connection.fetch("SELECT note FROM antiphon.responses")
    assert [note for (note,) in notes] == ["old resp_a"]


async def test_concurrent_processes_apply_migrations_once(database: Postgres) -> None:
    url = await database.create_database()
    stores = await asyncio.gather(*(open_store(url) for _ in range(6)))
    await stores[0].save("t", make_response("a"))
    assert all([await store.load("t", "resp_a") == make_response("a") for store in stores])
    await asyncio.gather(*(store.close() for store in stores))
    async with connected(url) as connection:
        applied = await connection.fetch("SELECT name FROM antiphon.migrations ORDER BY name")
    assert [name for (name,) in applied] == [
        name for name, _ in migrations("antiphon.store.postgres")
    ]


#: Queries of a sweep and of the deletion of a tenant that read small tables whole.
SMALL_TABLES = (
    "forget_owners",
    "forget_reservations",
    "forget_rates",
    "drop_tenant_webhooks",
    "drop_tenant_usage_rows",
    "drop_tenant_usage_sums",
)


async def test_every_query_uses_an_index(database: Postgres) -> None:
    url = await database.create_migrated_database()
    await (await open_store(url)).close()
    async with connected(url) as connection:
        await connection.execute("SET search_path TO antiphon; SET enable_seqscan TO off")
        await connection.execute("SET plan_cache_mode TO force_generic_plan")
        for name, query in queries("antiphon.store.postgres").items():
            await connection.execute(f"PREPARE asked AS {query}")
            count = len(set(re.findall(r"\$\d+", query)))
            given = f"({', '.join(['NULL'] * count)})" if count else ""
            plan = await connection.fetch(f"EXPLAIN EXECUTE asked{given}")
            # A sequence is read as a table of one row.
            walked = [line for (line,) in plan if "Seq Scan" in line and "_seq_seq" not in line]
            assert name in SMALL_TABLES or not walked, (name, walked)
            await connection.execute("DEALLOCATE asked")


# --- odd texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["msg_\0", "\0", "𝄞" * 1024, "x" * 1024], ids=len)
async def test_unindexable_ids_work(database: Postgres, name: str) -> None:
    store = await open_store(await database.create_migrated_database())
    messages = Message(id=name, role="user", content=(InputText(text="a\0b"),))
    await store.save("t", make_response("a", added=(messages,)))
    loaded = await store.load("t", "resp_a")
    assert loaded is not None and messages in loaded.input
    assert await store.load_item("t", name) == messages
    assert await store.load_item("t", name[:-1] + "?") is None
    assert await store.load("t", name) is None
    assert await store.load_conversation("t", name) is None
    assert await store.runs.events("t", name, -1, limit=1) is None
    assert await store.runs.take_over("t", name) is None
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1), (messages,))
    await store.add_conversation_items("t", "conv_a", (messages,))
    assert await store.load_conversation_items("t", "conv_a") == (messages,)
    assert await store.remove_conversation_item("t", "conv_a", name) is True
    await store.close()


def test_index_keys_are_distinct() -> None:
    odd = ["a\0", "a\0\0", "a\ufffd", "a", "x" * 512, "x" * 513, "x" * 514]
    assert len({index_key(text) for text in odd}) == len(odd)
    assert index_key("resp_a") == "resp_a"


async def test_invalid_text_fails_alone(database: Postgres) -> None:
    store = await open_store(await database.create_migrated_database())
    with pytest.raises(RunError):
        await store.save("\ud800", make_response("a"))
    with pytest.raises(RunError):
        await store.load("t", "\ud800")
    await store.save("t", make_response("a"))
    assert await store.load("t", "resp_a") == make_response("a")
    await store.close()


async def test_unreadable_row_raises_run_error(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    await store.save("t", make_response("a"))
    async with connected(url) as connection:
        await connection.execute("UPDATE antiphon.responses SET body = '{'")
    with pytest.raises(RunError, match=r"^The store could not be read\.$"):
        await store.load("t", "resp_a")
    await store.close()


async def test_large_chain_is_decoded(database: Postgres) -> None:
    store = await open_store(await database.create_migrated_database())
    for n in range(6):
        await store.save("t", make_response(str(n), str(n - 1) if n else None, text="y" * 50_000))
    chain = await store.load_chain("t", "resp_5")
    assert chain is not None and [stored.response.id for stored in chain] == [
        f"resp_{n}" for n in range(6)
    ]
    await store.close()


# --- outages -------------------------------------------------------------------------------------


async def test_killed_process_loses_no_announced_event(database: Postgres) -> None:
    url = await database.create_migrated_database()
    await (await open_store(url)).close()
    requests = [sys.executable, "-c", APPENDING, url]
    with subprocess.Popen(requests, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        announced_lines = [await asyncio.to_thread(child.stdout.readline) for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        announced_lines += [line for line in child.stdout if line.endswith("\n")]
        child.wait(30)
    store = await open_store(url)
    for name in "abcd":
        page = await store.runs.events("t", f"resp_{name}", -1, limit=1_000_000)
        assert page is not None
        remaining = [n for each in page.batches for n in range(each.first, each.last + 1)]
        announced = max(
            (int(line.split()[1]) for line in announced_lines if line[0] == name), default=1
        )
        assert remaining == list(range(len(remaining))) and remaining[-1] >= announced
    await store.close()


@pytest.mark.parametrize(
    ("state", "cause"),
    [("53100", "the disk is full"), ("58030", "the disk reports an error"), ("57014", "")],
)
async def test_disk_of_the_database_is_named(state: str, cause: str) -> None:
    with postgres() as server:
        url = await server.create_database()
        store = await open_store(url)
        async with connected(url) as connection:
            await connection.execute(_FAILING_WRITES.format(state))
        for work in (store.save("t", make_response("a")), store.runs.release("owner")):
            expected = f"could not be written: {cause}." if cause else "does not answer."
            with pytest.raises(StoreError, match=expected):
                await work
        health = StoreHealth(store)
        with pytest.raises(Overloaded, match=f"at the moment: {cause}." if cause else "moment."):
            await health.require()
        assert health.cause == cause
        await store.close()


#: Lets all writes fail as the server does it.
_FAILING_WRITES = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file "base/1/2"' USING ERRCODE = '{}'; END $$;
DO $$ DECLARE name TEXT; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'antiphon' LOOP
        EXECUTE format('CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON antiphon.%I
            FOR EACH STATEMENT EXECUTE FUNCTION refuse()', name);
    END LOOP;
END $$
"""


async def test_pool_recovers_from_a_killed_server() -> None:
    with postgres() as server:
        store = await open_store(await server.create_database())
        claim = await begin_run(store)
        with store.runs.subscribe("t", "resp_a") as tail:
            await asyncio.to_thread(server.stop)
            for work in (
                store.runs.append((Append(claim, batch(2)),)),
                store.save("t", make_response("b")),
                store.load("t", "resp_a"),
                store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=1, lease_s=60)),
            ):
                with pytest.raises(RunError, match="does not answer"):
                    await work
            tail.is_stale = False
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(60):
                await tail.wait()  # it hears again: what was said meanwhile has to be read
            assert tail.is_stale
        assert await store.runs.append((Append(claim, batch(2)),)) == frozenset()
        assert (
            await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3))) is True
        )
        await store.close()


async def test_pool_reopens_a_lost_connection(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    await begin_run(store)
    async with connected(url) as connection, asyncio.timeout(60):
        with store.runs.subscribe("t", "resp_a") as tail:
            await tail.wait()  # it hears
            tail.is_stale = False
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await tail.wait()
            assert tail.is_stale
    # The pool may not have noticed the loss yet.
    assert await retry_until_available(lambda: store.save("t", make_response("b")), limit_s=30)
    await store.close()


async def test_cancelled_append_still_notifies(database: Postgres) -> None:
    store = await open_store(await database.create_migrated_database())
    claim = await begin_run(store)
    async with asyncio.timeout(60):
        with store.runs.subscribe("t", "resp_a") as tail:
            for _ in ("the process listens", "the run is marked"):
                await tail.wait()
                tail.is_stale = False
            appending = asyncio.create_task(store.runs.append((Append(claim, batch(2)),)))
            await asyncio.sleep(0)
            appending.cancel()
            await tail.wait()
            found = tail.next_batch(1)
            assert found is not None and found.first == 2
            ending = asyncio.create_task(
                store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3)))
            )
            await asyncio.sleep(0)
            ending.cancel()
            await store.close()
            while not tail.is_stale:
                tail.next_batch(99)
                await tail.wait()


async def test_a_tenant_that_waits_for_its_lock_leaves_connections_to_others(
    database: Postgres,
) -> None:
    url = await database.create_migrated_database()
    pool = await ConnectionPool.open(url, connections=2)
    store = PostgresStore(pool)

    def writes() -> list[Coroutine[Any, Any, bool]]:
        limits: dict[str, Any] = {"max_responses": 9, "max_bytes": None, "lease_s": 60}
        return [
            *(store.files.put("flood", make_file(name), b"x") for name in "abc"),
            *(
                store.reserve_response(
                    Reservation(tenant="flood", response_id=f"resp_{n}", owner="o", **limits)
                )
                for n in range(3)
            ),
        ]

    try:
        async with asyncio.timeout(60), connected(url) as other, asyncio.TaskGroup() as group:
            lock = pool.queries["lock_files"]
            async with other.transaction():  # another server stores a large file of this tenant
                await other.fetch(lock, "flood")
                tasks = [group.create_task(write) for write in writes()]
                assert await asyncio.gather(*tasks[3:]) == [True] * 3
                assert await store.files.put("quiet", make_file("a"), b"x")
                assert not any(task.done() for task in tasks[:3])
            assert await asyncio.gather(*tasks) == [True] * 6
    finally:
        await store.close()


async def test_two_servers_together_do_not_exceed_a_quota(database: Postgres) -> None:
    url = await database.create_migrated_database()
    stores = [await PostgresStore.open(url, connections=3) for _ in range(2)]
    limits: dict[str, Any] = {"max_responses": 3, "max_bytes": None, "lease_s": 60}
    try:
        async with asyncio.timeout(60):
            for writes in (
                [
                    store.reserve_response(
                        Reservation(
                            tenant="t", response_id=f"resp_{number}{n}", owner=str(number), **limits
                        )
                    )
                    for number, store in enumerate(stores)
                    for n in range(6)
                ],
                [
                    store.files.put("t", make_file(f"{number}{n}"), b"x", FileLimits(max_files=3))
                    for number, store in enumerate(stores)
                    for n in range(6)
                ],
                [
                    store.vectors.put("t", make_vector_store(f"{number}{n}"), max_stores=3)
                    for number, store in enumerate(stores)
                    for n in range(6)
                ],
            ):
                assert sum(await asyncio.gather(*writes)) == 3
    finally:
        for store in stores:
            await store.close()
