"""Vector stores with random vectors, whose searches are compared with the exact one."""

from __future__ import annotations

import random
from array import array

import pytest

from antiphon.retrieval.vector_search import VectorSearch
from antiphon.store.base import Store
from antiphon.store.vectors import IndexedChunk, VectorQuery
from antiphon.testing.store_checks.vectors import make_indexed_file

DIMENSIONS = 16


def unit_vector(chance: random.Random) -> array[float]:
    """A vector in a random direction."""
    values = [chance.gauss(0, 1) for _ in range(DIMENSIONS)]
    length = sum(value * value for value in values) ** 0.5
    return array("f", [value / length for value in values])


async def add_file(
    store: Store, name: str, chance: random.Random, chunks: int = 20, vector_store: str = "a"
) -> None:
    """Add a file with random vectors of the model ``m`` to ``vs_VECTOR_STORE`` of ``t``."""
    indexed = make_indexed_file(name, store=vector_store)
    assert await store.vectors.add_files("t", [indexed], None)
    pieces = [
        IndexedChunk(start=n, text=f"{name} {n}", vector=unit_vector(chance).tobytes())
        for n in range(chunks)
    ]
    done = make_indexed_file(name, store=vector_store, status="completed")
    assert await store.vectors.finish_file("t", done, pieces, "m")


async def compare(store: Store, files: list[str] | None, limit: int = 10) -> int:
    """Compare a search with the exact one. Return the number of results."""
    query = unit_vector(random.Random(99))
    asked = VectorQuery(model="m", vector=query.tobytes(), files=files, limit=limit)
    hits = await store.vectors.search_vectors("t", "vs_a", asked)
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
