"""Nearest vectors by pgvector are those that comparing all vectors finds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres import vectors
from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.postgres.store import PostgresStore
from antiphon.store.postgres.vectors import Pgvector
from antiphon.store.vectors import VectorQuery
from antiphon.testing.store_check import all_checks
from antiphon.testing.store_checks.vectors import make_vector_store
from tests.real.postgres import Postgres

from .nearest_vectors import add_file, compare

FILES = 12
CHECKS = [
    check for check in all_checks().values() if check.__module__ == make_vector_store.__module__
]


@pytest.fixture
async def url(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. More than 100 chunks are large."""
    monkeypatch.setattr(vectors, "SMALL_ROWS", 100)
    monkeypatch.setattr(vectors, "EXACT_ROWS", 100)
    return await database.create_migrated_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store as behind a pooler: no session is ours."""
    opened = await open_store(url, vectors="pgvector", listen_url=url)
    yield opened
    await opened.close()


async def test_store_with_pgvector_passes_the_checks(database: Postgres) -> None:
    for check in CHECKS:
        opened = await open_store(await database.create_migrated_database(), vectors="pgvector")
        try:
            await check(opened)
        finally:
            await opened.close()
        database.give_back()


async def test_nearest_chunks_are_found_while_a_vector_store_grows(store: Store) -> None:
    chance = random.Random(1)
    await store.vectors.put("t", make_vector_store("a"))
    assert await compare(store, None) == 0
    for n in range(FILES):
        await add_file(store, str(n), chance)
        assert await compare(store, None) == 10
    assert await compare(store, ["file-3"], limit=30) == 20, "exact"
    assert await compare(store, [f"file-{n}" for n in range(9)]) == 10, "by the index"
    assert await compare(store, ["file-unknown"]) == 0
    assert (
        await store.vectors.search_vectors(
            "u", "vs_a", VectorQuery(model="m", vector=bytes(64), limit=9)
        )
        == ()
    )
    assert (
        await store.vectors.search_vectors(
            "t", "vs_a", VectorQuery(model="other", vector=bytes(64), limit=9)
        )
        == ()
    )


async def test_index_is_searched_only_for_large_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a small part, the index would find too few of the right chunks."""
    searched: list[str] = []
    execute = Transaction.execute

    async def record(self: Transaction, statement: str, **options: Any) -> None:
        if "hnsw.ef_search" in statement:
            searched.append(statement)
        await execute(self, statement, **options)

    monkeypatch.setattr(Transaction, "execute", record)
    chance = random.Random(4)
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(2 * FILES):
        await add_file(store, str(n), chance)
    files = [f"file-{n}" for n in range(2 * FILES)]
    assert await compare(store, files[:5]) == 10
    assert await compare(store, files[:11]) == 10
    assert searched == [], "less than half of the files"
    assert await compare(store, files[:12]) == 10
    assert await compare(store, None) == 10
    assert len(searched) == 2


async def test_repeated_searches_are_planned_for_their_vector(url: str) -> None:
    pool = await ConnectionPool.open(url, connections=1)
    store = PostgresStore(pool, await Pgvector.open(pool))
    try:
        await store.vectors.put("t", make_vector_store("a"))
        await add_file(store, "0", random.Random(10))
        for _ in range(7):
            assert await compare(store, None) == 10
        async with pool.transaction() as transaction:
            found = await transaction.fetch(
                "SELECT custom_plans, generic_plans FROM pg_prepared_statements"
                " WHERE statement LIKE $1",
                "%FROM small_vectors AS v JOIN%",
            )
        assert [tuple(row) for row in found] == [(7, 0)]
    finally:
        await store.close()


async def test_start_creates_the_index_that_a_dead_process_did_not(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "SMALL_ROWS", 1_000)
    store = await open_store(url, vectors="pgvector")
    await store.vectors.put("t", make_vector_store("a"))
    await add_file(store, "0", random.Random(11), chunks=120)
    await store.close()
    monkeypatch.setattr(vectors, "SMALL_ROWS", 100)
    pool = await ConnectionPool.open(url)
    store = PostgresStore(pool, await Pgvector.open(pool))
    try:
        async with pool.transaction() as transaction:
            found = await transaction.fetch("SELECT count(*) FROM antiphon.large_vector_stores")
        assert found[0][0] == 1
        assert await compare(store, None) == 10
    finally:
        await store.close()


async def test_chunks_of_removed_files_are_not_found(store: Store) -> None:
    chance = random.Random(2)
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(4):
        await add_file(store, str(n), chance)
    assert await store.vectors.remove_file("t", "vs_a", "file-1")
    assert await compare(store, None, limit=99) == 60
    for n in range(4, FILES):
        await add_file(store, str(n), chance)
    assert await store.vectors.remove_file("t", "vs_a", "file-2")
    await add_file(store, "3", chance, chunks=5)
    assert await compare(store, None) == 10
    assert await compare(store, ["file-2", "file-3"], limit=30) == 5
    assert await store.vectors.delete("t", "vs_a")


async def test_vectors_stored_without_pgvector_are_copied(url: str) -> None:
    chance = random.Random(3)
    plain = await open_store(url)
    for name in "ab":
        await plain.vectors.put("t", make_vector_store(name))
    for n in range(FILES):
        await add_file(plain, str(n), chance)
    assert (
        await plain.vectors.search_vectors(
            "t", "vs_a", VectorQuery(model="m", vector=bytes(64), limit=1)
        )
        is None
    )
    await plain.close()
    first = await open_store(url, vectors="pgvector")
    assert await compare(first, None) == 10
    await first.close()
    plain = await open_store(url)
    await plain.vectors.remove_file("t", "vs_a", "file-0")
    await add_file(plain, "1", chance, chunks=3)
    await plain.close()
    again = await open_store(url, vectors="pgvector")
    assert await compare(again, None) == 10
    assert await compare(again, ["file-0", "file-1"]) == 3
    await again.vectors.delete("t", "vs_a")
    await again.close()
    last = await open_store(url, vectors="pgvector")
    await last.close()


async def test_pgvector_needs_postgresql(tmp_path: object) -> None:
    with pytest.raises(SetupError, match=r'"pgvector" needs a store postgresql://'):
        await open_store(f"sqlite:{tmp_path}/a.db", vectors="pgvector")
