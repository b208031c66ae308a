"""Nearest vectors by pgvector are those that comparing all vectors finds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres.vectors import code_cache, pgvector
from antiphon.store.postgres.vectors.pgvector import Pgvector
from antiphon.store.postgres.vectors.vector_codes import VectorCodes
from antiphon.testing.postgres import Postgres
from antiphon.testing.vector_check import CHECKS, make_vector_store

from .nearest_vectors import add_file, compare, unit_vector

FILES = 12


@pytest.fixture
async def url(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. More than 100 chunks are large."""
    monkeypatch.setattr(pgvector, "SMALL_ROWS", 100)
    monkeypatch.setattr(pgvector, "EXACT_ROWS", 100)
    return await database.create_migrated_database()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store as behind a pooler: no session is ours."""
    opened = await open_store(url, vectors="pgvector", listen_url=url)
    yield opened
    await opened.close()


async def test_store_with_pgvector_passes_the_checks(database: Postgres) -> None:
    for check in CHECKS.values():
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
    assert await store.vectors.search_vectors("u", "vs_a", "m", bytes(64), None, 9) == ()
    assert await store.vectors.search_vectors("t", "vs_a", "other", bytes(64), None, 9) == ()


async def fill(store: Store, chance: random.Random) -> None:
    """Fill a vector store, and load its codes."""
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(FILES):
        await add_file(store, str(n), chance)
    await compare(store, ["file-0", "file-1"])
    await finish_loads(store)


async def finish_loads(store: Store) -> None:
    """Wait for the codes that searches lacked."""
    await store.vectors._nearest.finish_loads()  # type: ignore[attr-defined]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of later searches: by the index or by codes. 20 chunks are large."""
    monkeypatch.setattr(pgvector, "EXACT_ROWS", 20)
    monkeypatch.setattr(pgvector, "CODED_ROWS", 140)
    monkeypatch.setattr(pgvector, "_MIN_CODED", 110)
    monkeypatch.setattr(pgvector, "_CODED_PER_RESULT", 1)
    methods: list[str] = []
    search_index, find_candidates = Pgvector._search_index, VectorCodes.find_candidates

    async def record_index(self: Pgvector, *arguments: Any) -> list[Any]:
        methods.append("index")
        return await search_index(self, *arguments)

    def record_codes(self: VectorCodes, *arguments: Any) -> Any:
        methods.append("codes")
        candidates = find_candidates(self, *arguments)
        assert len(candidates) <= 110
        return candidates

    monkeypatch.setattr(Pgvector, "_search_index", record_index)
    monkeypatch.setattr(VectorCodes, "find_candidates", record_codes)
    return methods


async def test_share_of_the_files_decides_how_they_are_searched(
    store: Store, searches: list[str]
) -> None:
    await fill(store, random.Random(4))
    assert searches == [], "exact as long as there are no codes"
    assert await compare(store, ["file-3"]) == 10
    assert searches == [], "exact"
    assert await compare(store, [f"file-{n}" for n in range(5)]) == 10
    assert searches == ["codes"]
    assert await compare(store, [f"file-{n}" for n in range(7)]) == 10
    assert searches == ["codes", "codes"], "half of the files"
    assert await compare(store, [f"file-{n}" for n in range(8)]) == 10
    assert await compare(store, None) == 10
    assert searches == ["codes", "codes", "index", "index"], "too many chunks for codes"


async def test_codes_in_postgresql_are_computed_like_those_of_queries(
    store: Store, searches: list[str]
) -> None:
    await fill(store, random.Random(12))
    (codes,) = store.vectors._nearest._codes._codes.values()  # type: ignore[attr-defined]
    chance = random.Random(12)
    nearest = [codes.find_candidates(unit_vector(chance), range(999), 1) for _ in range(240)]
    found = sum(chunks == [chunk] for chunk, chunks in enumerate(nearest, start=1))
    assert found >= 230, "others have the code of another vector, too"


async def test_files_without_codes_are_compared(store: Store, searches: list[str]) -> None:
    chance = random.Random(5)
    await fill(store, chance)
    await add_file(store, "new", chance, chunks=15)
    files = ["file-new", "file-2", "file-3", "file-4"]
    assert await compare(store, files) == 10
    await finish_loads(store)
    await add_file(store, "2", chance, chunks=5)
    assert await compare(store, files) == 10
    assert await store.vectors.remove_file("t", "vs_a", "file-3")
    assert await compare(store, files) == 10
    assert searches == ["codes"] * 3
    await add_file(store, "large", chance, chunks=25)
    assert await compare(store, ["file-large", *files]) == 10
    assert searches == ["codes"] * 3, "too many chunks without codes"
    await finish_loads(store)
    assert await compare(store, ["file-large", *files]) == 10
    assert searches == ["codes"] * 4


async def test_codes_of_deleted_files_are_dropped(store: Store, searches: list[str]) -> None:
    chance = random.Random(6)
    await fill(store, chance)
    for n in range(9):
        assert await store.vectors.remove_file("t", "vs_a", f"file-{n}")
    await add_file(store, "new", chance)
    files = ["file-new", "file-10"]
    for _ in range(2):
        assert await compare(store, files) == 10
        await finish_loads(store)
    (codes,) = store.vectors._nearest._codes._codes.values()  # type: ignore[attr-defined]
    assert codes.file_count == 4


async def test_vector_stores_too_large_for_codes_are_compared(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "_MAX_BYTES", 12 * 20 * 16 - 1)
    await fill(store, random.Random(7))
    for _ in range(2):
        assert await compare(store, ["file-0", "file-1"]) == 10
        await finish_loads(store)
    assert searches == []


async def test_least_recently_used_codes_make_room(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "_MAX_BYTES", 12 * 20 * 16 + 100)
    chance = random.Random(8)
    await fill(store, chance)
    await store.vectors.put("t", make_vector_store("b"))
    for n in range(6):
        await add_file(store, f"b{n}", chance, vector_store="b")
    files = ["file-b0", "file-b1"]
    await store.vectors.search_vectors("t", "vs_b", "m", bytes(64), files, 9)
    await finish_loads(store)
    await store.vectors.search_vectors("t", "vs_b", "m", bytes(64), files, 9)
    assert searches == ["codes"]
    assert await compare(store, ["file-0", "file-1"]) == 10
    assert searches == ["codes"], "exact: the codes made room"


async def test_failure_to_load_codes_leaves_searches_exact(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_cache, "_CODES", "SELECT no_column FROM large_vectors_{id}")
    await fill(store, random.Random(9))
    assert await compare(store, ["file-0", "file-1"]) == 10
    assert searches == []


async def test_repeated_searches_are_planned_for_their_vector(url: str) -> None:
    store = await open_store(url, vectors="pgvector", connections=1)
    try:
        await store.vectors.put("t", make_vector_store("a"))
        await add_file(store, "0", random.Random(10))
        for _ in range(7):
            assert await compare(store, None) == 10
        pool = store.vectors._pool  # type: ignore[attr-defined]
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
    monkeypatch.setattr(pgvector, "SMALL_ROWS", 1_000)
    store = await open_store(url, vectors="pgvector")
    await store.vectors.put("t", make_vector_store("a"))
    await add_file(store, "0", random.Random(11), chunks=120)
    await store.close()
    monkeypatch.setattr(pgvector, "SMALL_ROWS", 100)
    store = await open_store(url, vectors="pgvector")
    try:
        async with store.vectors._pool.transaction() as transaction:  # type: ignore[attr-defined]
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
    assert await plain.vectors.search_vectors("t", "vs_a", "m", bytes(64), None, 1) is None
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
