"""The vectors nearest to one, found exactly: all are compared. What was read of a vector store is
kept until its vectors change. It knows no texts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from antiphon.embeddings.base import Vector
from antiphon.errors import SetupError
from antiphon.store.vectors import ChunkHit, ChunkVectors, VectorIndex, VectorsVersion

__all__ = ["Nearest", "check_numbers"]

#: Bytes of vectors that are kept at hand.
_ROOM = 2**30


class _Ready(Struct, frozen=True):
    mark: VectorsVersion
    matrix: ChunkVectors
    rows: Any


def check_numbers() -> None:
    """Raises ``SetupError`` without the library that compares vectors."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise SetupError(
            'Searching by meaning needs an extra: pip install "antiphon[embeddings]".'
        ) from None


class Nearest:
    """One a server."""

    def __init__(self, vectors: VectorIndex, *, room: int = _ROOM) -> None:
        self._vectors = vectors
        self._room = room
        self._ready: OrderedDict[tuple[str, str, str], _Ready] = OrderedDict()
        self._size = 0

    async def found(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: Vector,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...]:
        """The chunks of these files (None: of all), the nearest first; score: the cosine."""
        key = (tenant, store_id, model)
        mark = await self._vectors.vectors_version(tenant, store_id, model)
        ready = self._ready.get(key)
        if ready is None or ready.mark != mark:
            matrix = await self._vectors.load_vectors(tenant, store_id, model)
            ready = _Ready(mark, matrix, await asyncio.to_thread(_rows, matrix))
            self._keep(key, ready)
        self._ready.move_to_end(key)
        return await asyncio.to_thread(_nearest, ready, vector, files, limit)

    def _keep(self, key: tuple[str, str, str], ready: _Ready) -> None:
        old = self._ready.pop(key, None)
        self._ready[key] = ready
        self._size += len(ready.matrix.vectors) - (len(old.matrix.vectors) if old else 0)
        while self._size > self._room and len(self._ready) > 1:
            _, dropped = self._ready.popitem(last=False)
            self._size -= len(dropped.matrix.vectors)


def _rows(matrix: ChunkVectors) -> Any:
    import numpy

    rows = numpy.frombuffer(matrix.vectors, "<f4")
    return rows.reshape(len(matrix.chunks), -1) if matrix.chunks else rows


def _nearest(
    ready: _Ready, vector: Vector, files: Collection[str] | None, limit: int
) -> tuple[ChunkHit, ...]:
    import numpy

    matrix = ready.matrix
    if not matrix.chunks:
        return ()
    scores = ready.rows @ numpy.asarray(vector, "<f4")
    if files is not None:
        allowed = frozenset(files)
        meant = numpy.fromiter((id in allowed for id in matrix.file_ids), bool, len(scores))
        scores = numpy.where(meant, scores, -numpy.inf)
    count = min(limit, len(scores))
    top = numpy.argpartition(-scores, count - 1)[:count]
    ordered = top[numpy.argsort(-scores[top], kind="stable")]
    return tuple(
        ChunkHit(chunk=matrix.chunks[at], file_id=matrix.file_ids[at], score=float(scores[at]))
        for at in map(int, ordered)
        if scores[at] > -numpy.inf
    )
