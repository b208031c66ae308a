"""Vector stores in pgvector: recall and latency of a search, in one of a million chunks and parts
of it, and in vector stores that share a million."""

from __future__ import annotations

import asyncio
import os
import random
import time
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.store import open_store
from antiphon.store.vectors import VectorQuery
from antiphon.testing.store_checks.vectors import make_indexed_file, make_vector_store
from tests.real.postgres import postgres

from .table import Line, median
from .vectors import clustered_vectors, near

_FILES, _DIMENSIONS, _QUERIES, _LIMIT = 1_000, 384, 40, 100
#: Shares of the files that a filter leaves.
_SHARES = (1.0, 0.7, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.02, 0.01, 0.005, 0.001)
#: Shares of the chunks that vector stores have, in another database.
_STORES = {
    "a": 0.3, "b": 0.2, "c": 0.15, "d": 0.12, "e": 0.1, "f": 0.07, "g": 0.03, "h": 0.02, "i": 0.007,
    "j": 0.003,
}  # fmt: skip
_RECALL, _LATENCY_MS = 0.98, 50.0


class _Filled(Struct):
    """A database with vectors. Row n of ``data`` is chunk n + 1; ``files`` and ``stores`` are the
    file of each chunk and the vector store of each file."""

    url: str
    data: Any
    files: Any
    stores: list[str]


def pgvector() -> Iterator[Line]:
    """Search a million chunks of 384 dimensions, or as many as CHUNKS says."""
    chunks = int(os.environ.get("CHUNKS", 1_000_000))
    settings = {
        "fsync": "off",
        "shared_buffers": "2GB",
        "max_wal_size": "8GB",
        "max_parallel_maintenance_workers": "2",
    }
    with postgres(None, **settings) as server:
        for shares in ({"a": 1.0}, _STORES):
            yield from asyncio.run(_measure(server, chunks, shares))
            server.give_back()


async def _measure(server: Any, chunks: int, shares: Mapping[str, float]) -> list[Line]:
    filled = await fill(await server.create_database(), chunks, shares)
    started = time.monotonic()
    store = await open_store(filled.url, vectors="pgvector")
    took = time.monotonic() - started
    lines = [Line(what=f"{chunks} vectors copied and indexed", value=took, unit="s")]
    try:
        if len(shares) == 1:
            lines += await measure_filters(store, filled)
        else:
            for name, share in shares.items():
                text = f"a vector store of {share:.1%}"
                lines += await _measure_search(store, filled, name, None, text)
    finally:
        await store.close()
    return lines


async def measure_filters(store: Any, filled: _Filled) -> list[Line]:
    """Measure searches in parts of one vector store."""
    lines: list[Line] = []
    for share in _SHARES:
        files = None if share == 1 else _choose(share)
        lines += await _measure_search(store, filled, "a", files, f"{share:.1%} of the files")
    return lines


def _choose(share: float) -> list[int]:
    return sorted(random.Random(1).sample(range(_FILES), max(1, round(share * _FILES))))


async def _measure_search(
    store: Any,
    filled: _Filled,
    name: str,
    numbers: list[int] | None,
    what: str,
    first: int = _QUERIES,
) -> list[Line]:
    """Measure searches of a vector store, or of some of its files."""
    import numpy

    chance = random.Random(2)
    if numbers is None:
        numbers = [n for n, owner in enumerate(filled.stores) if owner == name]
        ids = None
    else:
        ids = [f"file-{n}" for n in numbers]
    rows = numpy.flatnonzero(numpy.isin(filled.files, numbers))
    part = filled.data if len(rows) == len(filled.data) else filled.data[rows]
    times, found = [], 0
    for _ in range(first):
        query = near(filled.data[chance.randrange(len(filled.data))], chance)
        best = set((rows[numpy.argpartition(-(part @ query), 10)[:10]] + 1).tolist())
        vector = array("f", query.tolist()).tobytes()
        began = time.monotonic()
        asked = VectorQuery(model="m", vector=vector, files=ids, limit=_LIMIT)
        hits = await store.vectors.search_vectors("t", f"vs_{name}", asked)
        times.append(1e3 * (time.monotonic() - began))
        found += len(best & {hit.chunk for hit in hits[:10]})
    text, load = f"{what}: {len(rows)} chunks", f"load {os.getloadavg()[0]:.1f}"
    recall = found / (10 * len(times))
    times.sort()
    return [
        Line(what=f"recall@10 in {text}", value=recall, unit="", at_least=_RECALL),
        Line(
            what=f"median in {text}", value=median(times), unit="ms", at_most=_LATENCY_MS, note=load
        ),
        Line(what=f"p95 in {text}", value=times[int(0.95 * len(times))], unit="ms"),
    ]


async def fill(url: str, chunks: int, shares: Mapping[str, float]) -> _Filled:
    """Store clustered vectors in vector stores with these shares of the files, without pgvector."""
    import asyncpg
    import numpy

    bounds = numpy.cumsum(list(shares.values()))
    # The files of a vector store are spread over all topics.
    places = [n * 79 % _FILES / _FILES for n in range(_FILES)]
    stores = [list(shares)[int(numpy.searchsorted(bounds, place, "right"))] for place in places]
    store = await open_store(url)
    for name in shares:
        await store.vectors.put("t", make_vector_store(name))
    for n, name in enumerate(stores):
        indexed = make_indexed_file(str(n), store=name, status="completed")
        await store.vectors.add_files("t", [indexed], None)
    await store.close()
    # The chunks of a file follow each other, as the indexer stores them.
    files: Any = numpy.arange(chunks) * _FILES // chunks
    data = clustered_vectors(files, _DIMENSIONS)
    connection = await asyncpg.connect(url)
    await connection.execute("SET search_path TO antiphon")
    ids = await connection.fetch("SELECT store, seq FROM vector_files ORDER BY seq")
    await connection.execute("ALTER TABLE chunks DROP COLUMN words")
    for start in range(0, chunks, 50_000):
        part = range(start, min(start + 50_000, chunks))
        await connection.copy_records_to_table(
            "chunks",
            records=((n + 1, *ids[files[n]], 0, "x") for n in part),
            columns=("seq", "store", "file", "start", "text"),
        )
        await connection.copy_records_to_table(
            "chunk_vectors",
            records=((n + 1, *ids[files[n]], "m", data[n].tobytes()) for n in part),
            columns=("chunk", "store", "file", "model", "vector"),
        )
    await connection.close()
    return _Filled(url, data, files, stores)
