"""Vector stores in Qdrant: recall and CPU time of a search, of vector stores and parts of one.

Needs Qdrant's engine as a library: ``pip install qdrant-edge-py``. The collection, the filters and
the parameters are those of ``antiphon/store/postgres/vectors/qdrant_client.py``, without a server.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from antiphon.store.postgres.vectors import qdrant_client as client

from .table import Line, median
from .vectors import clustered_vectors, near

__all__ = ["qdrant"]

_FILES, _DIMENSIONS, _QUERIES, _LIMIT = 400, 384, 30, 100
#: Shares of the points that vector stores have; the rest is in others.
_STORES = {"a": 0.5, "b": 0.25, "c": 0.05, "d": 0.02}
#: Shares of the files of the largest vector store that a filter leaves.
_PARTS = (0.5, 0.2, 0.05)


def qdrant() -> Iterator[Line]:
    """Search 50,000 chunks of 384 dimensions, or as many as CHUNKS says."""
    import numpy
    import qdrant_edge as edge

    chunks = int(os.environ.get("CHUNKS", 50_000))
    files = numpy.arange(chunks) * _FILES // chunks
    data = clustered_vectors(files, _DIMENSIONS)
    bounds = numpy.cumsum(list(_STORES.values()))
    names = [*_STORES, "others"]
    # Files of a vector store are spread over all topics.
    store_of = [
        names[int(numpy.searchsorted(bounds, n * 79 % _FILES / _FILES, "right"))]
        for n in range(_FILES)
    ]
    with tempfile.TemporaryDirectory() as folder:
        shard = _fill(edge, folder, data, files, store_of)
        for name in _STORES:
            rows = numpy.flatnonzero([store_of[file] == name for file in files])
            yield from _measure(
                edge, shard, data, rows, name, None, f"a vector store of {len(rows)}"
            )
        own = [file for file in range(_FILES) if store_of[file] == "a"]
        for share in _PARTS:
            part = sorted(random.Random(3).sample(own, round(share * len(own))))
            rows = numpy.flatnonzero(numpy.isin(files, part))
            yield from _measure(edge, shard, data, rows, "a", part, f"a part of {len(rows)}")
        shard.close()


def _fill(edge: Any, folder: str, data: Any, files: Any, store_of: list[str]) -> Any:
    """Store the vectors and build the index."""
    index = edge.HnswIndexConfig(
        m=0, payload_m=client.LINKS, ef_construct=100, full_scan_threshold=10_000
    )
    vectors = edge.EdgeVectorParams(size=_DIMENSIONS, distance=edge.Distance.Cosine)
    shard = edge.EdgeShard.create(folder, edge.EdgeConfig(vectors=vectors, hnsw_config=index))
    for field, schema in (
        ("tenant", edge.KeywordIndexParams(is_tenant=True)),
        ("store", edge.KeywordIndexParams()),
        ("file", edge.IntegerIndexParams(lookup=True, range=False)),
    ):
        shard.update(edge.UpdateOperation.create_field_index(field, schema))
    for start in range(0, len(data), 2_000):
        points = [
            edge.Point(
                n + 1,
                data[n].tolist(),
                {"tenant": "t", "store": store_of[files[n]], "file": int(files[n])},
            )
            for n in range(start, min(start + 2_000, len(data)))
        ]
        shard.update(edge.UpdateOperation.upsert_points(points))
    shard.optimize()
    return shard


def _measure(
    edge: Any, shard: Any, data: Any, rows: Any, store: str, files: list[int] | None, what: str
) -> Iterator[Line]:
    import numpy

    chance = random.Random(2)
    conditions = [
        edge.FieldCondition(key=key, match=edge.MatchValue(value=value))
        for key, value in (("tenant", "t"), ("store", store))
    ]
    if files is not None:
        conditions.append(edge.FieldCondition(key="file", match=edge.MatchAny(files)))
    is_exact, candidates = client.search_depth(len(rows), files is not None, _LIMIT)
    params = edge.SearchParams(exact=is_exact, hnsw_ef=candidates)
    times, found = [], 0
    for _ in range(_QUERIES):
        query = near(data[chance.randrange(len(data))], chance)
        best = set((rows[numpy.argsort(-(data[rows] @ query))[:10]] + 1).tolist())
        request = edge.QueryRequest(
            limit=_LIMIT,
            query=edge.Query.Nearest(query.tolist()),
            filter=edge.Filter(must=conditions),
            params=params,
        )
        began = time.process_time()
        hits = shard.query(request)
        times.append(1e3 * (time.process_time() - began))
        found += len(best & {hit.id for hit in hits[:10]})
    yield Line(what=f"recall@10 in {what}", value=found / (10 * _QUERIES), unit="")
    yield Line(what=f"median CPU time in {what}", value=median(times), unit="ms")
