"""The SQLite database behind the stores: its threads and its transactions."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

from antiphon.store.sqlite.database import Database


async def test_statements_of_a_read_see_the_same_state(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "a.db")
    await database.write(lambda connection: connection.execute("CREATE TABLE t (n)").rowcount)
    first, committed = threading.Event(), threading.Event()

    def count_twice(connection: sqlite3.Connection) -> tuple[int, int]:
        (before,) = connection.execute("SELECT count(*) FROM t").fetchone()
        first.set()
        assert committed.wait(10)
        (after,) = connection.execute("SELECT count(*) FROM t").fetchone()
        return before, after

    counts = asyncio.create_task(database.read(count_twice))
    assert await asyncio.to_thread(first.wait, 10)
    await database.write(lambda connection: connection.execute("INSERT INTO t VALUES (1)").rowcount)
    committed.set()
    assert await counts == (0, 0)
    assert await database.read(lambda c: c.execute("SELECT count(*) FROM t").fetchone()) == (1,)
    await database.close()
