"""The PostgreSQL vector index, which searches words by PostgreSQL's text search, and vectors by
pgvector."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.vectors import SqlVectorIndex
from antiphon.store.vectors import ChunkHit, IndexedChunk, IndexedFile, VectorQuery

from .pgvector import Pgvector, VectorRow


class PostgresVectorIndex(SqlVectorIndex[Transaction]):
    """The vector index in PostgreSQL. ``pgvector``: the search by vectors. If it is None, this
    index cannot search by vectors, so callers load the vectors and compare them."""

    def __init__(self, pool: ConnectionPool, pgvector: Pgvector | None = None) -> None:
        super().__init__(pool)
        self._pgvector = pgvector

    def _any_of(self, words: Collection[str]) -> str:
        return " | ".join(map(_quote, words))

    async def _index_vectors(
        self,
        transaction: Transaction,
        store: int,
        file: int,
        model: str,
        vectors: Sequence[tuple[int, bytes]],
    ) -> None:
        if self._pgvector is not None:
            rows = [VectorRow(chunk, file, vector) for chunk, vector in vectors]
            await self._pgvector.add(transaction, store, model, rows)

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        is_finished = await super().finish_file(tenant, indexed, chunks, model)
        has_vectors = any(chunk.vector is not None for chunk in chunks)
        if is_finished and has_vectors and self._pgvector is not None:
            await self._pgvector.settle(tenant, index_key(indexed.file.vector_store_id), model)
        return is_finished

    async def search_vectors(
        self, tenant: str, store_id: str, query: VectorQuery
    ) -> tuple[ChunkHit, ...] | None:
        if self._pgvector is None:
            return None
        return await self._pgvector.search(tenant, index_key(store_id), query)


def _quote(word: str) -> str:
    return "'{}'".format(word.replace("\\", "\\\\").replace("'", "''").replace("\0", " "))
