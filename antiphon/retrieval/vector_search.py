"""Search for the chunks whose vectors are nearest to a query's vector. The search uses the vector
index of the database. If the database has no vector index, this module compares the query with all
vectors of the vector store.

For this comparison, the vectors of each vector store are cached until they change.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from antiphon.embeddings.base import Vector
from antiphon.store.vectors import ChunkHit, ChunkVectors, VectorIndex, VectorQuery, VectorsVersion
from antiphon.support.installation import require_package

#: Maximum size of all cached vectors, in bytes.
_CACHE_BYTES = 2**30


class _CachedStore(Struct, frozen=True):
    """The vectors of one vector store in memory.

    ``version``: changes when the vectors in the database change, so that an outdated copy is
    noticed. ``matrix``: the chunks and the bytes of their vectors. ``rows``: the same vectors as a
    numpy array, one row per chunk.
    """

    version: VectorsVersion
    matrix: ChunkVectors
    rows: Any


def require_numpy() -> None:
    """Raise ``SetupError`` if numpy is not installed. This function does not import numpy. The
    first search does this."""
    require_package("numpy", "numpy, which searches by meaning,", "embeddings")


class VectorSearch:
    """Searches vector stores for the chunks nearest to a vector. ``vectors``: the vectors in the
    database. ``cache_bytes``: maximum size of the cached vectors, in bytes."""

    def __init__(self, vectors: VectorIndex, *, cache_bytes: int = _CACHE_BYTES) -> None:
        self._vectors = vectors
        self._cache_bytes = cache_bytes
        self._cached_stores: OrderedDict[tuple[str, str, str], _CachedStore] = OrderedDict()
        self._cached_bytes = 0

    async def search(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: Vector,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...]:
        """Return the ``limit`` chunks of a vector store that are nearest to ``vector``, nearest
        first. Each chunk's score is its cosine similarity to ``vector``.

        ``model``: the embedding model that computed the vectors. ``files``: ids of the files to
        search; None means all files.
        """
        query = VectorQuery(model=model, vector=vector.tobytes(), files=files, limit=limit)
        hits = await self._vectors.search_vectors(tenant, store_id, query)
        if hits is not None:
            return hits
        key = (tenant, store_id, model)
        version = await self._vectors.vectors_version(tenant, store_id, model)
        cached = self._cached_stores.get(key)
        if cached is None or cached.version != version:
            matrix = await self._vectors.load_vectors(tenant, store_id, model)
            cached = _CachedStore(version, matrix, await asyncio.to_thread(_rows, matrix))
            self._cache(key, cached)
        self._cached_stores.move_to_end(key)
        return await asyncio.to_thread(_nearest_chunks, cached, vector, files, limit)

    def _cache(self, key: tuple[str, str, str], cached: _CachedStore) -> None:
        previous = self._cached_stores.pop(key, None)
        self._cached_stores[key] = cached
        self._cached_bytes += len(cached.matrix.vectors) - (
            len(previous.matrix.vectors) if previous else 0
        )
        while self._cached_bytes > self._cache_bytes and len(self._cached_stores) > 1:
            _, dropped = self._cached_stores.popitem(last=False)
            self._cached_bytes -= len(dropped.matrix.vectors)


def _rows(matrix: ChunkVectors) -> Any:
    import numpy

    rows = numpy.frombuffer(matrix.vectors, "<f4")
    return rows.reshape(len(matrix.chunks), -1) if matrix.chunks else rows


def _nearest_chunks(
    cached: _CachedStore, vector: Vector, files: Collection[str] | None, limit: int
) -> tuple[ChunkHit, ...]:
    import numpy

    matrix = cached.matrix
    if not matrix.chunks:
        return ()
    scores = cached.rows @ numpy.asarray(vector, "<f4")
    if files is not None:
        allowed = frozenset(files)
        is_allowed = numpy.fromiter((id in allowed for id in matrix.file_ids), bool, len(scores))
        scores = numpy.where(is_allowed, scores, -numpy.inf)
    count = min(limit, len(scores))
    top = numpy.argpartition(-scores, count - 1)[:count]
    ordered = top[numpy.argsort(-scores[top], kind="stable")]
    return tuple(
        ChunkHit(
            chunk=matrix.chunks[index], file_id=matrix.file_ids[index], score=float(scores[index])
        )
        for index in map(int, ordered)
        if scores[index] > -numpy.inf
    )
