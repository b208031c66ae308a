"""Nearest vectors by pgvector are those that comparing all vectors finds."""

from __future__ import annotations

import random
from array import array
from collections.abc import AsyncIterator

import pytest

from antiphon.errors import SetupError
from antiphon.retrieval.vector_search import VectorSearch
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres import pgvector
from antiphon.store.vectors import IndexedChunk
from antiphon.testing.postgres import Postgres
from antiphon.testing.vector_check import CHECKS, make_indexed_file, make_vector_store

DIMENSIONS, FILES = 16, 12


def unit_vector(chance: random.Random) -> array[float]:
    values = [chance.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(value * value for value in values) ** 0.5
    return array("f", [value / length for value in values])


async def add_file(store: Store, name: str, chance: random.Random, chunks: int = 20) -> None:
    indexed = make_indexed_file(name)
    assert await store.vectors.add_files("t", [indexed], None)
    pieces = [
        IndexedChunk(start=n, text=f"{name} {n}", vector=unit_vector(chance).tobytes())
        for n in range(chunks)
    ]
    done = make_indexed_file(name, status="completed")
    assert await store.vectors.finish_file("t", done, pieces, "m")


@pytest.fixture
async def url(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database. More than 100 chunks are large."""
    monkeypatch.setattr(pgvector, "SMALL_ROWS", 100)
    monkeypatch.setattr(pgvector, "EXACT_ROWS", 100)
    return await database.fresh()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A store as behind a pooler: no session is ours."""
    opened = await open_store(url, vectors="pgvector", listen_url=url)
    yield opened
    await opened.close()


async def compare(store: Store, files: list[str] | None, limit: int = 10) -> int:
    """Compare a search with the exact one. Return the number of results."""
    query = unit_vector(random.Random(99))
    hits = await store.vectors.search_vectors("t", "vs_a", "m", query.tobytes(), files, limit)
    assert hits is not None
    exact = VectorSearch(_WithoutIndex(store.vectors))  # type: ignore[arg-type]
    expected = await exact.search("t", "vs_a", "m", query, files, limit)
    assert [hit.chunk for hit in hits] == [hit.chunk for hit in expected]
    assert [hit.file_id for hit in hits] == [hit.file_id for hit in expected]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in expected], abs=2e-3)
    return len(hits)


class _WithoutIndex:
    """A vector index that leaves the comparison of vectors to its caller."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    async def search_vectors(self, *arguments: object) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


async def test_store_with_pgvector_passes_the_checks(database: Postgres) -> None:
    for check in CHECKS.values():
        opened = await open_store(await database.fresh(), vectors="pgvector")
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
