"""File search: latency among 100,000 chunks."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from array import array
from collections.abc import Iterator

from antiphon.retrieval.vector_search import VectorSearch
from antiphon.store import open_store
from antiphon.store.vectors import IndexedChunk, WordQuery
from antiphon.testing.store_checks.vectors import make_indexed_file, make_vector_store

from .table import Line, median

_CHUNKS, _FILES, _DIMENSIONS = 100_000, 100, 384


def speed() -> Iterator[Line]:
    """Measure each part of a search in 100,000 chunks of 384 dimensions, in SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        words, first, meaning = asyncio.run(_measure(f"sqlite:{folder}/bench.db"))
    yield Line(what="search of 100,000 chunks by words", value=words, unit="ms")
    yield Line(what="by meaning, the first time (vectors are read)", value=first, unit="ms")
    yield Line(what="by meaning, from then on", value=meaning, unit="ms")


async def _measure(url: str) -> tuple[float, float, float]:
    store = await open_store(url)
    chance = random.Random(1)
    vocabulary = [f"{chance.choice('bcdfgk')}{n:x}" for n in range(20_000)]
    vectors = store.vectors
    await vectors.put("t", make_vector_store("a"))
    ids = [make_indexed_file(str(n)).file.id for n in range(_FILES)]
    for n in range(_FILES):
        await vectors.add_files("t", [make_indexed_file(str(n))], None)
        chunks = [
            IndexedChunk(
                start=0,
                # A few words are common, most are rare.
                text=" ".join(
                    vocabulary[int(len(vocabulary) * chance.random() ** 3)] for _ in range(120)
                ),
                vector=array("f", [chance.gauss(0, 0.05) for _ in range(_DIMENSIONS)]).tobytes(),
            )
            for _ in range(_CHUNKS // _FILES)
        ]
        await vectors.finish_file("t", make_indexed_file(str(n), status="completed"), chunks, "m")
    nearest, request = VectorSearch(vectors), array("f", [0.05] * _DIMENSIONS)

    async def by_words() -> None:
        some = [vocabulary[int(len(vocabulary) * chance.random() ** 2)] for _ in range(6)]
        assert await vectors.search_words("t", "vs_a", WordQuery(words=some, files=ids, limit=100))

    async def by_meaning() -> None:
        assert len(await nearest.search("t", "vs_a", "m", request, None, 100)) == 100

    async def milliseconds(work: object) -> float:
        started = time.perf_counter()
        await work()  # type: ignore[operator]
        return (time.perf_counter() - started) * 1e3

    words = median([await milliseconds(by_words) for _ in range(10)])
    first = await milliseconds(by_meaning)
    meaning = median([await milliseconds(by_meaning) for _ in range(10)])
    await store.close()
    return words, first, meaning
