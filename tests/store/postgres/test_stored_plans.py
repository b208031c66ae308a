"""Generic plans that PostgreSQL made while the tables were nearly empty. The connections of a new
server use them for minutes, so they must also suit large tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from antiphon.store.base import Store
from antiphon.store.containers import ContainerRecord
from antiphon.store.files import FileQuery
from antiphon.store.journal import JournalEntry
from antiphon.store.postgres.connections import Connections, DriverConnection
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import (
    Append,
    ClaimQuery,
    ConversationLock,
    ItemQuery,
    Reservation,
    ResponseQuery,
    RunEnd,
)
from antiphon.store.vectors import IndexedChunk, VectorFileQuery
from antiphon.testing.store_checks.files import make_file
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from antiphon.testing.store_checks.vectors import make_indexed_file, make_vector_store
from antiphon.wire.items import InputText, Message
from antiphon.wire.resources.containers import ContainerExpiresAfter, ContainerResource
from antiphon.wire.resources.conversations import ConversationResource
from tests.real.postgres import postgres
from tests.store.postgres.test_run_queries import discarded_rows

#: Rounds that fill the tables. PostgreSQL makes its generic plans in the first of them.
ALL = 150
#: Number of rows that a statement may read and discard.
DISCARDED = 40
GENERIC_PLANS = "SELECT statement, name FROM pg_prepared_statements WHERE generic_plans > 100"
#: Statements that read all runs that have not ended, all conversations of a tenant, or all
#: containers.
READS_MANY = {
    "claim",
    "conversations",
    "count_unended_runs",
    "drop_expired_containers",
    "heartbeat",
    "usage",
}


async def use_responses(store: Store, n: int) -> None:
    """Store, read, list and delete responses and conversations."""
    name, previous = str(n), str(n - 1) if n % 3 else None
    await store.reserve_response(
        Reservation(
            tenant="t",
            response_id=f"resp_{name}",
            owner="owner",
            max_responses=10**6,
            max_bytes=None,
            lease_s=60,
        )
    )
    await store.save("t", make_response(name, previous))
    await store.release_reservation("t", f"resp_{name}", "owner")
    assert await store.load("t", f"resp_{name}")
    assert await store.load_chain("t", f"resp_{name}")
    assert await store.has_response("t", f"resp_{name}")
    assert await store.load_item("t", f"msg_o_{name}")
    for newest_first in (True, False):
        query = ResponseQuery(limit=5, newest_first=newest_first, after=f"resp_{name}")
        await store.list_responses("t", query)
    await store.usage("t")
    await store.save("t", make_response(f"deleted_{name}"))
    assert await store.delete("t", f"resp_deleted_{name}")
    entry = JournalEntry(key=f"mcpr_{name}", response_id=f"resp_{name}", is_approval=True)
    assert await store.journal.begin("t", [entry], 1) == (entry,)
    assert await store.journal.settle("t", entry.key, None, b"x")


async def use_conversations(store: Store, n: int) -> None:
    """Use a conversation of its own and one that grows."""
    item = Message(id=f"msg_c_{n}", role="user", content=(InputText(text="x"),))
    conversation = ConversationResource(id=f"conv_{n}", created_at=1)
    await store.save_conversation("t", conversation, (item,))
    assert await store.load_conversation("t", f"conv_{n}")
    await store.list_conversations("t", after=f"conv_{n}", limit=5)
    for name in (f"conv_{n}", "conv_0"):
        added = Message(id=f"msg_d_{n}_{name}", role="user", content=(InputText(text="x"),))
        await store.add_conversation_items("t", name, (added,))
        assert await store.find_conversation_items("t", name, [added.id])
        await store.list_conversation_items("t", name, ItemQuery(limit=5, after=added.id))
    await store.remove_conversation_item("t", "conv_0", f"msg_d_{n}_conv_0")
    lock = ConversationLock(conversation=f"conv_{n}", owner="owner")
    holder = f"resp_in_{n}"
    assert await store.runs.lock_conversation(
        "t", holder, ConversationLock(f"conv_{n}", "owner"), lease_s=60
    )
    await store.save("t", make_response(f"in_{n}"), lock=lock)
    await store.runs.unlock_conversation("t", f"conv_{n}", holder)


async def use_runs(store: Store, n: int) -> None:
    """Run a response in the background to its end, and another one, which is deleted. Leave a third
    one unended."""
    for name in (f"run_{n}", f"run_{n}_deleted", f"unended_{n}"):
        claim = await begin_run(store, name)
        await store.runs.append((Append(claim, batch(2, 3)),))
        await store.runs.events("t", f"resp_{name}", -1, limit=10)
        await store.runs.load_batches(claim)
        if name.startswith("run"):
            await store.runs.end(claim, RunEnd(stored=ended_response(name), batch=batch(5)))
            await store.load("t", f"resp_{name}")
    assert await store.delete("t", f"resp_run_{n}_deleted")
    await store.runs.heartbeat(ClaimQuery(owner="one", models=["m"], lease_s=60))
    await store.runs.count_unended("t", "key")


async def use_files(store: Store, n: int) -> None:
    """Store and read files and containers."""
    assert await store.files.put("t", make_file(str(n)), b"x")
    assert await store.files.get("t", f"file-{n}")
    assert await store.files.read("t", f"file-{n}")
    await store.files.list_page("t", FileQuery(limit=5, after=f"file-{n}"))
    resource = ContainerResource(
        id=f"cntr_{n}",
        created_at=1,
        name="x",
        status="active",
        expires_after=ContainerExpiresAfter(minutes=20),
        last_active_at=1,
        memory_limit="1g",
    )
    await store.containers.renew(f"owner{n % 4}", "http://a", lease_s=60, used=[resource])
    record = ContainerRecord(tenant="t", resource=resource, owner=f"owner{n % 4}", url="http://a")
    await store.containers.add(record, max_active=None, lease_s=60)
    assert await store.containers.find("t", f"cntr_{n}")
    await store.containers.expire(f"owner{n % 4}", [f"cntr_{n}"])


async def use_vectors(store: Store, n: int) -> None:
    """Index files in a vector store of their own and in one that grows."""
    vectors = store.vectors
    await vectors.put("t", make_vector_store(str(n)))
    assert await vectors.get("t", f"vs_{n}")
    for name in {str(n), "0"}:
        await vectors.add_files("t", [make_indexed_file(f"{n}_{name}", store=name)], None)
        done = make_indexed_file(f"{n}_{name}", store=name, status="completed", size=10)
        chunk = IndexedChunk(start=0, text=f"word{n}", vector=bytes(8))
        await vectors.finish_file("t", done, [chunk], "m")
        assert await vectors.get_file("t", f"vs_{name}", f"file-{n}_{name}")
        assert await vectors.list_chunks("t", f"vs_{name}", f"file-{n}_{name}")
        query = VectorFileQuery(limit=5, after=f"file-{n}_{name}")
        await vectors.list_file_page("t", f"vs_{name}", query)
        await vectors.vectors_version("t", f"vs_{name}", "m")


async def use_all(store: Store, n: int) -> None:
    for use in (use_responses, use_conversations, use_runs, use_files, use_vectors):
        await use(store, n)


def literal(value: Any) -> str:
    """Write an argument of a statement in SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    if isinstance(value, (list, tuple)):
        elements = ",".join(map(element, value)).replace("'", "''")
        return f"'{{{elements}}}'"
    return "'{}'".format(str(value).replace("'", "''"))


def element(value: Any) -> str:
    """Write an element of an array in SQL."""
    if value is None:
        return "NULL"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def first_arguments(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a query. If it was executed for a list of rows, return the first."""
    return arguments[0] if isinstance(arguments, list) and arguments else arguments


async def test_plans_of_empty_tables_suit_large_tables() -> None:
    """Otherwise each look-up takes longer with each new row, until the tables are analysed.
    Autovacuum might analyse them during the test."""
    with postgres(autovacuum="off") as server:
        await check_plans(await server.create_database())


async def check_plans(url: str) -> None:
    opened: list[Any] = []
    acquire = Connections.acquire

    async def record(self: Connections) -> DriverConnection:
        opened.append(await acquire(self))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connections, "acquire", record)
        pool = await ConnectionPool.open(url, connections=1)
        store = PostgresStore(pool)
        await store.has_response("t", "resp_a")
        used: dict[str, Sequence[Any]] = {}
        opened[0].add_query_logger(
            lambda record: used.update({record.query: first_arguments(record.args)})
        )
        for n in range(ALL):
            await use_all(store, n)
    connection = opened[-1]  # the same one, perhaps handed over to an operation that waited
    names = {query: name for name, query in pool.queries.items()}
    found: dict[str, int] = {}
    transaction = connection.transaction()
    await transaction.start()
    for query, prepared in await connection.fetch(GENERIC_PLANS):
        arguments = ", ".join(map(literal, used.get(query, ())))
        if query in names and arguments:
            explained = f'EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE "{prepared}" ({arguments})'
            unused = connection.transaction()
            await unused.start()
            with suppress(asyncpg.UniqueViolationError):  # it only inserts rows
                statement = await connection.prepare(explained)  # the stored plans stay stored
                plan = json.loads(await statement.fetchval())
                found[names[query]] = max(discarded_rows(plan[0]["Plan"]), default=0)
            await unused.rollback()
    await transaction.rollback()
    assert len(found) > 40, sorted(found)
    assert {
        name: count for name, count in found.items() if count > DISCARDED
    }.keys() <= READS_MANY, found
    await store.close()
