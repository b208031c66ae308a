"""Vector stores in pgvector: recall and latency of a search, of all files and of a part of them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from array import array
from collections.abc import Iterator
from typing import Any

from antiphon.store import open_store
from antiphon.testing.postgres import postgres
from antiphon.testing.vector_check import make_indexed_file, make_vector_store

from .table import Line, median

__all__ = ["pgvector"]

_FILES, _DIMENSIONS, _CLUSTERS, _QUERIES, _LIMIT = 1_000, 384, 500, 20, 100
#: Directions in which the vectors of a cluster differ, as embeddings of texts do: noise in all
#: dimensions would make all of them equally far from each other.
_INTRINSIC = 32
#: Shares of the files that a filter leaves.
_SHARES = (1.0, 0.5, 0.2, 0.05, 0.02, 0.01, 0.005, 0.001)


def pgvector() -> Iterator[Line]:
    """Search a million chunks of 384 dimensions, or as many as CHUNKS says."""
    chunks = int(os.environ.get("CHUNKS", 1_000_000))
    settings = {
        "shared_buffers": "2GB",
        "max_wal_size": "8GB",
        "max_parallel_maintenance_workers": "2",
    }
    with postgres(**{"fsync": "off", "listen_addresses": "127.0.0.1", **settings}) as server:
        yield from asyncio.run(_measure(server, chunks))


async def _measure(server: Any, chunks: int) -> list[Line]:
    import numpy

    url = await server.fresh()
    data = await _fill(url, chunks)
    started = time.monotonic()
    store = await open_store(url, vectors="pgvector")
    lines = [
        Line(
            what=f"{chunks} vectors copied and indexed", value=time.monotonic() - started, unit="s"
        )
    ]
    chance = random.Random(2)
    queries = [_near(data[chance.randrange(chunks)], chance) for _ in range(_QUERIES)]
    try:
        for share in _SHARES:
            count = max(1, round(share * _FILES))
            numbers = sorted(chance.sample(range(_FILES), count))
            files = None if share == 1 else [f"file-{n}" for n in numbers]
            rows = (
                numpy.arange(chunks)
                if files is None
                else numpy.flatnonzero(numpy.isin(numpy.arange(chunks) % _FILES, numbers))
            )
            times, found = [], 0
            for query in queries:
                scores = data[rows] @ query if files is not None else data @ query
                best = set((rows[numpy.argpartition(-scores, 10)[:10]] + 1).tolist())
                vector = array("f", query.tolist()).tobytes()
                began = time.monotonic()
                hits = await store.vectors.search_vectors("t", "vs_a", "m", vector, files, _LIMIT)
                times.append(1e3 * (time.monotonic() - began))
                assert hits is not None
                found += len(best & {hit.chunk for hit in hits[:10]})
            share_text = f"{share:.1%} of the files"
            lines += [
                Line(what=f"recall@10 in {share_text}", value=found / (10 * _QUERIES), unit=""),
                Line(what=f"median latency in {share_text}", value=median(times), unit="ms"),
            ]
    finally:
        await store.close()
    return lines


async def _fill(url: str, chunks: int) -> Any:
    """Store clustered vectors, without pgvector. Return them as a matrix; row n is chunk n + 1."""
    import asyncpg
    import numpy

    store = await open_store(url)
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(_FILES):
        await store.vectors.add_files("t", [make_indexed_file(str(n), status="completed")], None)
    await store.close()
    source = numpy.random.default_rng(1)
    centers = source.normal(size=(_CLUSTERS, _DIMENSIONS)).astype("f4")
    # A file is about few things, so a filter by files is related to the meaning of their chunks.
    topics = source.integers(0, _CLUSTERS, size=(_FILES, 4))
    numbers = numpy.arange(chunks)
    chosen = topics[numbers % _FILES, source.integers(0, 4, size=chunks)]
    axes = source.normal(size=(_INTRINSIC, _DIMENSIONS)).astype("f4") / _INTRINSIC**0.5
    data = centers[chosen] + 0.9 * source.normal(size=(chunks, _INTRINSIC)).astype("f4") @ axes
    data /= numpy.linalg.norm(data, axis=1, keepdims=True)
    connection = await asyncpg.connect(url)
    await connection.execute("SET search_path TO antiphon")
    ids = [row[0] for row in await connection.fetch("SELECT seq FROM vector_files ORDER BY seq")]
    store_row = await connection.fetchval("SELECT seq FROM vector_stores")
    await connection.execute("ALTER TABLE chunks DROP COLUMN words")
    for start in range(0, chunks, 50_000):
        part = range(start, min(start + 50_000, chunks))
        await connection.copy_records_to_table(
            "chunks",
            records=((n + 1, store_row, ids[n % _FILES], 0, "x") for n in part),
            columns=("seq", "store", "file", "start", "text"),
        )
        await connection.copy_records_to_table(
            "chunk_vectors",
            records=((n + 1, store_row, ids[n % _FILES], "m", data[n].tobytes()) for n in part),
            columns=("chunk", "store", "file", "model", "vector"),
        )
    await connection.close()
    return data


def _near(vector: Any, chance: random.Random) -> Any:
    import numpy

    query = vector + numpy.array([chance.gauss(0, 0.02) for _ in range(_DIMENSIONS)], "f4")
    return query / numpy.linalg.norm(query)
