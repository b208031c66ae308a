"""The SQLite database behind the stores: its threads and its transactions."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from antiphon.errors import StoreError
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


async def test_reads_whose_callers_are_gone_hold_up_nobody(tmp_path: Path) -> None:
    """A client may hang up and ask again, faster than a long read ends."""
    database = await Database.open(tmp_path / "a.db")
    begun, opened, done = threading.Event(), threading.Event(), list[int]()

    def wait(connection: sqlite3.Connection) -> None:
        begun.set()
        assert opened.wait(10)

    running = asyncio.create_task(database.read(wait))
    assert await asyncio.to_thread(begun.wait, 10)
    for number in range(20):
        gone = asyncio.create_task(database.read(lambda connection, n=number: done.append(n)))
        for _ in range(3):
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait((gone,))
    last = asyncio.create_task(database.read(lambda connection: done.append(99)))
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(running, last)
    assert done == [99]
    await database.close()


async def test_no_other_read_waits_for_the_content_of_a_file(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "a.db")
    database.queries = {"content": "SELECT 1", "file": "SELECT 2"}
    opened = threading.Event()
    content = asyncio.create_task(database.rows("content", (), lambda row: opened.wait(60)))
    async with asyncio.timeout(60):
        assert await database.rows("file", (), tuple) == [(2,)]
        assert not content.done()
        opened.set()
        assert await content == [True]
    await database.close()


@pytest.mark.parametrize(
    ("code", "refusal", "cause"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, None, ": the disk reports an error."),
        (sqlite3.SQLITE_IOERR_FSYNC, errno.EIO, ": the disk reports an error."),
        (sqlite3.SQLITE_IOERR_WRITE, errno.EDQUOT, ": the disk is full."),
        (sqlite3.SQLITE_IOERR_SHMSIZE, errno.ENOSPC, ": the disk is full."),
        (sqlite3.SQLITE_FULL, None, ": the disk is full."),
        (sqlite3.SQLITE_IOERR_WRITE, errno.EROFS, ": the file system is read-only."),
        (sqlite3.SQLITE_IOERR_NOMEM, None, "."),
        (sqlite3.SQLITE_CONSTRAINT, errno.ENOSPC, "."),
    ],
)
async def test_obstacle_of_the_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, refusal: int | None, cause: str
) -> None:
    """SQLite's code does not always tell it: ``refusal`` is what the disk says to a small write."""
    database = await Database.open(tmp_path / "a.db")

    def allocate(*_: int) -> None:
        if refusal is not None:
            raise OSError(refusal, os.strerror(refusal))

    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(StoreError) as written:
        await database.write(fail)
    assert written.value.message == f"The store could not be written{cause}"
    await database.close()


async def test_disk_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "a.db")

    def fail(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
        raise error

    with pytest.raises(StoreError, match="could not be read: the disk reports an error"):
        await database.read(fail)
    await database.close()
