"""Reading a part of a conversation costs as much as that part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.records import ItemQuery
from antiphon.store.sqlite.database import Database
from antiphon.store.sqlite.store import SqliteStore
from antiphon.wire.items import InputText, Item, Message
from antiphon.wire.resources.conversations import ConversationResource
from tests.real.postgres import Postgres

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
    database = await Database.open(tmp_path / "a.db")
    store = SqliteStore(database)
    conversation = ConversationResource(id="conv_a", created_at=1)
    await store.save_conversation("t", conversation, messages(MANY))
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 100
        return 0

    await database.read(lambda connection: connection.set_progress_handler(count, 100))
    found = await store.list_conversation_items("t", "conv_a", QUERIES[what])
    await store.find_conversation_items("t", "conv_a", ["msg_7", "msg_4711"])
    assert found
    assert steps < MANY, "instructions of SQLite's machine: fewer than items"
    await store.close()


@pytest.mark.parametrize("what", QUERIES)
async def test_postgres_reads_a_page_alone(what: str, database: Postgres) -> None:
    pool = await ConnectionPool.open(await database.create_migrated_database())
    store = PostgresStore(pool)
    conversation = ConversationResource(id="conv_a", created_at=1)
    await store.save_conversation("t", conversation, messages(MANY))
    query = QUERIES[what]
    name = "newest_items" if query.newest_first else "oldest_items"
    arguments: tuple[object, ...] = ("t", "conv_a", query.after, query.until, query.limit)
    if query.kinds is not None:
        name, arguments = f"{name}_of_kinds", (*arguments, list(KINDS))
    assert await store.list_conversation_items("t", "conv_a", query)
    async with pool.transaction() as transaction:
        await transaction.execute("ANALYZE conversation_items")
        explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + pool.queries[name]
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
