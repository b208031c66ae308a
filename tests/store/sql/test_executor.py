"""The executors of both databases do the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.errors import StoreError
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.sql.executor import Executor, SqlTransaction
from antiphon.store.sqlite.database import Database
from antiphon.store.sqlite.executor import SqliteExecutor
from tests.stores import POSTGRES

KINDS = pytest.mark.parametrize("kind", ["sqlite", POSTGRES])


@asynccontextmanager
async def opened(
    kind: str, request: pytest.FixtureRequest
) -> AsyncIterator[Executor[SqlTransaction]]:
    if kind == "sqlite":
        database = await Database.open(request.getfixturevalue("tmp_path") / "a.db")
        try:
            yield SqliteExecutor(database)
        finally:
            await database.close()
    else:
        url = await request.getfixturevalue("database").create_migrated_database()
        pool = await ConnectionPool.open(url)
        try:
            yield pool
        finally:
            await pool.close()


@KINDS
async def test_operations_of_a_transaction(kind: str, request: pytest.FixtureRequest) -> None:
    async def work(transaction: SqlTransaction) -> list[Any]:
        values = [("t", name, name.encode()) for name in "abc"]
        await transaction.change_many("create_value", values)
        file = ("t", "file_a", "user_data", 3, None, b"{}")
        return [
            await transaction.value("value", "t", "b"),
            await transaction.value("value", "t", "d"),
            await transaction.change("create_value", "t", "a", b"new"),
            await transaction.change("replace_value", "t", "a", b"new"),
            [tuple(row) for row in await transaction.rows("value", "t", "a")],
            await transaction.insert("put_file", *file)
            == await transaction.value("file_row", "t", "file_a"),
        ]

    async with opened(kind, request) as executor:
        assert await executor.write(work) == [b"b", None, 0, 1, [(b"new",)], True]
        assert await executor.change("drop_value", "t", "a") == 1
        assert await executor.change("drop_value", "t", "a") == 0
        assert await executor.rows("value", "t", "a") == []
        assert await executor.decoded_rows(lambda row: len(row[0]), "value", "t", "b") == [1]


@KINDS
async def test_lists_are_arrays(kind: str, request: pytest.FixtureRequest) -> None:
    async with opened(kind, request) as executor:
        for key in ("a", 'b"\\', "ü", "d"):
            await executor.change("put_unused_blob", key)
        assert await executor.change("drop_unused_blobs", []) == 0
        assert await executor.change("drop_unused_blobs", ["a", 'b"\\', "ü", "d\0", "x"]) == 3
        assert [row[0] for row in await executor.rows("unused_blobs", 9)] == ["d"]


@KINDS
async def test_a_write_that_fails_changes_nothing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async def work(transaction: SqlTransaction) -> None:
        await transaction.change("create_value", "t", "a", b"x")
        await transaction.insert("put_file", "t", "file_a", None, None, None, None)

    async with opened(kind, request) as executor:
        with pytest.raises(StoreError):
            await executor.write(work)
        assert await executor.rows("value", "t", "a") == []


@KINDS
async def test_a_cancelled_write_tells_of_its_commit(
    kind: str, request: pytest.FixtureRequest
) -> None:
    told = asyncio.Event()

    async def work(transaction: SqlTransaction) -> None:
        await transaction.change("create_value", "t", "a", b"x")

    async with opened(kind, request) as executor:
        writing = asyncio.create_task(executor.write(work, then=lambda _: told.set()))
        await asyncio.sleep(0)
        writing.cancel()
        async with asyncio.timeout(30):
            await told.wait()
        assert len(await executor.rows("value", "t", "a")) == 1


async def test_a_write_waits_for_its_transaction_alone(request: pytest.FixtureRequest) -> None:
    """SQLite's thread could not wait for anything else."""

    async def work(transaction: SqlTransaction) -> None:
        await asyncio.sleep(0)

    async with opened("sqlite", request) as executor:
        with pytest.raises(StoreError) as refused:
            await executor.write(work)
    assert isinstance(refused.value.__cause__, RuntimeError)
