"""The PostgreSQL vector index. It has one table for the chunks and another table for the vectors.
It searches words by PostgreSQL's text search."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from antiphon.store.common.row_mapping import (
    chunk_row,
    encode,
    file_batch_of,
    indexed_file_of,
    indexed_file_row,
    usage_of,
    vector_store_of,
)
from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.sql.executor import index_key
from antiphon.store.vectors import (
    ChunkHit,
    ChunkVectors,
    IndexedChunk,
    IndexedFile,
    IndexingTask,
    IndexUsage,
    VectorFileQuery,
    VectorIndex,
    VectorQuery,
    VectorsVersion,
    WordQuery,
)
from antiphon.wire.resources.vector_stores import FileBatch, VectorStore

from .pgvector import Pgvector, VectorRow


class PostgresVectorIndex(VectorIndex):
    """Implements ``VectorIndex`` with tables in PostgreSQL. ``pgvector``: the search by vectors.
    If it is None, this index cannot search by vectors, so callers load the vectors and compare
    them."""

    def __init__(self, pool: ConnectionPool, pgvector: Pgvector | None = None) -> None:
        self._pool = pool
        self._pgvector = pgvector

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        row = (tenant, store.id, store.expires_at, encode(store))
        if max_stores is None:
            await self._pool.rows("put_vector_store", *row)
            return True
        async with self._pool.tenant_transaction("vector_stores", tenant) as transaction:
            others = await transaction.value("count_other_vector_stores", tenant, store.id)
            if others >= max_stores:
                return False
            await transaction.rows("put_vector_store", *row)
            return True

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        found = await self._pool.decoded_rows(
            vector_store_of, "vector_store", tenant, index_key(store_id)
        )
        return found[0] if found else None

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(await self._pool.decoded_rows(vector_store_of, "vector_stores", tenant))

    async def delete(self, tenant: str, store_id: str) -> bool:
        return bool(await self._pool.rows("drop_vector_store", tenant, index_key(store_id)))

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        named = None if batch is None else index_key(batch)
        return usage_of(await self._pool.rows("vector_usage", tenant, index_key(store_id), named))

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        store_id = files[0].file.vector_store_id if batch is None else batch.vector_store_id
        async with self._pool.transaction() as transaction:
            row = await self._store_row(transaction, tenant, store_id)
            if row is None:
                return False
            ids = [indexed.file.id for indexed in files]
            await transaction.rows("drop_vector_files_of", row, ids)
            for indexed in files:
                await transaction.rows("put_vector_file", row, *indexed_file_row(indexed))
            if batch is not None:
                await transaction.rows("put_vector_batch", row, batch.id, encode(batch))
            return True

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        async with self._pool.transaction() as transaction:
            row = await self._store_row(transaction, tenant, indexed.file.vector_store_id)
            if row is None:
                return False
            found = await transaction.rows("settle_vector_file", row, *_changed_columns(indexed))
            if not found:
                return False
            file_row = found[0][0]
            vectors = []
            for chunk in chunks:
                # PostgreSQL's texts cannot hold U+0000.
                cleaned = replace(chunk, text=chunk.text.replace("\0", " "))
                number = await transaction.value("put_chunk", row, file_row, *chunk_row(cleaned))
                if chunk.vector is not None:
                    # As readable as the text of the chunk, which PostgreSQL searches.
                    vector = memoryview(chunk.vector)
                    await transaction.rows("put_vector", number, row, file_row, model, vector)
                    vectors.append(VectorRow(number, file_row, chunk.vector))
            if self._pgvector is not None:
                await self._pgvector.add(transaction, row, model, vectors)
        if self._pgvector is not None and vectors:
            await self._pgvector.settle(tenant, index_key(indexed.file.vector_store_id), model)
        return True

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        async with self._pool.transaction() as transaction:
            row = await self._store_row(transaction, tenant, indexed.file.vector_store_id)
            file, body = indexed.file, encode(indexed)
            labelled = await transaction.rows("label_vector_file", row, file.id, file.status, body)
            return bool(labelled)

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        key = (tenant, index_key(store_id), index_key(file_id))
        found = await self._pool.decoded_rows(indexed_file_of, "vector_file", *key)
        return found[0] if found else None

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        return tuple(
            await self._pool.decoded_rows(
                indexed_file_of, "vector_files", tenant, index_key(store_id)
            )
        )

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        name = "newest_vector_files" if query.newest_first else "oldest_vector_files"
        ids = (store_id, query.after, query.until)
        keys = (None if id is None else index_key(id) for id in ids)
        batch = None if query.batch is None else index_key(query.batch)
        arguments = (tenant, *keys, query.status, batch, query.limit)
        return tuple(await self._pool.decoded_rows(indexed_file_of, name, *arguments))

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        key = (tenant, index_key(store_id), index_key(file_id))
        return bool(await self._pool.rows("drop_vector_file", *key))

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        key = (tenant, index_key(store_id), index_key(batch_id))
        found = await self._pool.decoded_rows(file_batch_of, "vector_batch", *key)
        return found[0] if found else None

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        rows = await self._pool.rows("chunks", tenant, index_key(store_id), index_key(file_id))
        return tuple(IndexedChunk(start=start, text=text) for start, text in rows)

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        rows = await self._pool.rows("chunk_texts", tenant, index_key(store_id), sorted(chunks))
        return {row[0]: row[1] for row in rows}

    async def search_words(
        self, tenant: str, store_id: str, query: WordQuery
    ) -> tuple[ChunkHit, ...]:
        expression = " | ".join(_quote(word) for word in query.words)
        key = (tenant, index_key(store_id))
        files = sorted(query.files)
        rows = await self._pool.rows("search_chunks", *key, expression, files, query.limit)
        return tuple(ChunkHit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows)

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        (found,) = await self._pool.rows("vector_mark", tenant, index_key(store_id), model)
        return VectorsVersion(*found)

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        rows = await self._pool.rows("vector_matrix", tenant, index_key(store_id), model)
        return ChunkVectors.from_rows(rows)

    async def search_vectors(
        self, tenant: str, store_id: str, query: VectorQuery
    ) -> tuple[ChunkHit, ...] | None:
        if self._pgvector is None:
            return None
        return await self._pgvector.search(tenant, index_key(store_id), query)

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        rows = await self._pool.rows("unfinished_vector_files")
        return tuple(
            IndexingTask(tenant=who, store_id=store, file_id=file) for who, store, file in rows
        )

    async def _store_row(self, transaction: Transaction, tenant: str, store_id: str) -> int | None:
        """Return the row number of a vector store, and lock the vector store against deletion until
        the end of the transaction. Returns None if the vector store is unknown."""
        found = await transaction.rows("lock_vector_store", tenant, index_key(store_id))
        return found[0][0] if found else None


def _changed_columns(indexed: IndexedFile) -> tuple[object, ...]:
    """Return the columns ``id``, ``status``, ``bytes`` and ``body`` of an indexed file. All of them
    except ``id`` change when the indexing ends."""
    id, _, status, size, body = indexed_file_row(indexed)
    return id, status, size, body


def _quote(word: str) -> str:
    return "'{}'".format(word.replace("\\", "\\\\").replace("'", "''").replace("\0", " "))
