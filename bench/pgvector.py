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
from .vectors import clustered_vectors, near

__all__ = ["pgvector"]

_FILES, _DIMENSIONS, _QUERIES, _LIMIT = 1_000, 384, 20, 100
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
    queries = [near(data[chance.randrange(chunks)], chance) for _ in range(_QUERIES)]
    try:
        for share in _SHARES:
            count = max(1, round(share * _FILES))
            numbers = sorted(chance.sample(range(_FILES), count))
            files = None if share == 1 else [f"file-{n}" for n in numbers]
            rows = (
                numpy.arange(chunks)
                if files is None
                else numpy.flatnonzero(numpy.isin(numpy.arange(chunks) * _FILES // chunks, numbers))
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
    # The chunks of a file follow each other, as the indexer stores them.
    files = numpy.arange(chunks) * _FILES // chunks
    data = clustered_vectors(files, _DIMENSIONS)
    connection = await asyncpg.connect(url)
    await connection.execute("SET search_path TO antiphon")
    ids = [row[0] for row in await connection.fetch("SELECT seq FROM vector_files ORDER BY seq")]
    store_row = await connection.fetchval("SELECT seq FROM vector_stores")
    await connection.execute("ALTER TABLE chunks DROP COLUMN words")
    for start in range(0, chunks, 50_000):
        part = range(start, min(start + 50_000, chunks))
        await connection.copy_records_to_table(
            "chunks",
            records=((n + 1, store_row, ids[files[n]], 0, "x") for n in part),
            columns=("seq", "store", "file", "start", "text"),
        )
        await connection.copy_records_to_table(
            "chunk_vectors",
            records=((n + 1, store_row, ids[files[n]], "m", data[n].tobytes()) for n in part),
            columns=("chunk", "store", "file", "model", "vector"),
        )
    await connection.close()
    return data
