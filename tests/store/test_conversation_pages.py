"""Reading a part of a conversation costs as much as that part; older databases are migrated."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from antiphon.store import open_store
from antiphon.store.common.sql import migrations
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import ItemQuery
from antiphon.store.sqlite.store import SqliteStore
from antiphon.testing.postgres import Postgres
from antiphon.wire.items import InputText, Item, Message
from antiphon.wire.resources.conversations import ConversationResource

MANY = 5_000
KINDS = frozenset({"developer"})
#: What is read of a long conversation.
QUERIES = {
    "the newest": ItemQuery(limit=20, newest_first=True),
    "a page in the middle": ItemQuery(limit=20, newest_first=True, after="msg_2500"),
    "a page before": ItemQuery(limit=20, until="msg_2500"),
    "some kinds": ItemQuery(limit=9_999, until="msg_4000", kinds=KINDS),
}


def messages(count: int) -> tuple[Item, ...]:
    part = InputText(text="x" * 100)
    first = Message(id="msg_developer", role="developer", content=(part,))
    rest = (Message(id=f"msg_{n}", role="user", content=(part,)) for n in range(count))
    return (first, *rest)


@pytest.mark.parametrize("what", QUERIES)
async def test_sqlite_reads_a_page_alone(what: str, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    conversation = ConversationResource(id="conv_a", created_at=1)
    await store.save_conversation("t", conversation, messages(MANY))
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    store._database._read_connection.set_progress_handler(count, 100)
    found = await store.list_conversation_items("t", "conv_a", QUERIES[what])
    await store.find_conversation_items("t", "conv_a", ["msg_7", "msg_4711"])
    assert found
    assert steps < MANY, "instructions of SQLite's machine: fewer than items"
    await store.close()


@pytest.mark.parametrize("what", QUERIES)
async def test_postgres_reads_a_page_alone(what: str, database: Postgres) -> None:
    store = await open_store(await database.create_migrated_database())
    assert isinstance(store, PostgresStore)
    conversation = ConversationResource(id="conv_a", created_at=1)
    await store.save_conversation("t", conversation, messages(MANY))
    query = QUERIES[what]
    name = "newest_items" if query.newest_first else "oldest_items"
    arguments: tuple[object, ...] = ("t", "conv_a", query.after, query.until, query.limit)
    if query.kinds is not None:
        name, arguments = f"{name}_of_kinds", (*arguments, list(KINDS))
    assert await store.list_conversation_items("t", "conv_a", query)
    async with store._pool.transaction() as transaction:
        await transaction.execute("ANALYZE conversation_items")
        explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + store._pool.queries[name]
        plan = json.loads((await transaction.fetch(explain, *arguments))[0][0])
    assert _rows(plan[0]["Plan"]) < 100
    await store.close()
    database.give_back()


def _rows(plan: dict[str, object]) -> float:
    """The largest number of rows that a part of a plan reads."""
    read = sum(
        float(str(plan.get(name, 0)))
        for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    )
    parts = plan.get("Plans", [])
    assert isinstance(parts, list)
    return max([read, *map(_rows, parts)])


OLD_ITEMS = {
    "msg_1": b'{"type":"message","id":"msg_1","role":"developer","content":[]}',
    "fc_1": b'{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"\\u0000"}',
    "msg_2": b'{"type":"message","id":"msg_2","role":"user","content":[]}',
}


async def test_older_sqlite_database_knows_the_kinds_of_its_items(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE migrations (name TEXT PRIMARY KEY)")
        for name, script in migrations("antiphon.store.sqlite"):
            if "item_order" in name:
                break
            connection.executescript(script)
            connection.execute("INSERT INTO migrations VALUES (?)", (name,))
        connection.execute(
            "INSERT INTO conversations (seq, tenant, id, body) VALUES (1, 't', 'conv_a', '{}')"
        )
        connection.executemany(
            "INSERT INTO conversation_items (conversation, tenant, id, body) VALUES (1, 't', ?, ?)",
            OLD_ITEMS.items(),
        )
        connection.commit()
    store = await SqliteStore.open(path)
    for kind, id in (("developer", "msg_1"), ("function_call", "fc_1"), ("user", "msg_2")):
        query = ItemQuery(limit=9, kinds=frozenset({kind}))
        found = await store.list_conversation_items("t", "conv_a", query)
        assert [item.id for item in found or ()] == [id]
    await store.close()


async def test_older_postgres_database_knows_the_kinds_of_its_items(database: Postgres) -> None:
    url = await database.create_database()
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE SCHEMA antiphon; CREATE TABLE antiphon.migrations (name TEXT PRIMARY KEY);"
        "SET search_path TO antiphon"
    )
    for name, script in migrations("antiphon.store.postgres"):
        if "item_order" in name:
            break
        await connection.execute(script)
        await connection.execute("INSERT INTO migrations VALUES ($1)", name)
    row = await connection.fetchval(
        "INSERT INTO conversations (tenant, id, body) VALUES ('t', 'conv_a', '') RETURNING seq"
    )
    for id, body in OLD_ITEMS.items():
        await connection.execute(
            "INSERT INTO conversation_items (conversation, tenant, id, body)"
            " VALUES ($1, 't', $2, $3)",
            row,
            id,
            body,
        )
    await connection.close()
    store = await open_store(url)
    for kind, id in (("developer", "msg_1"), ("function_call", "fc_1"), ("user", "msg_2")):
        query = ItemQuery(limit=9, kinds=frozenset({kind}))
        found = await store.list_conversation_items("t", "conv_a", query)
        assert [item.id for item in found or ()] == [id]
    await store.close()
    database.give_back()
