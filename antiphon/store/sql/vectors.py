"""The vector index in tables: one for the chunks, which a full-text search finds, and one for the
vectors."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic

from msgspec.structs import replace

from antiphon.store.sql.row_mapping import (
    Columns,
    chunk_row,
    encode,
    file_batch_of,
    indexed_file_of,
    indexed_file_row,
    usage_of,
    vector_store_of,
)
from antiphon.store.vectors import (
    ChunkHit,
    ChunkVectors,
    IndexedChunk,
    IndexedFile,
    IndexingTask,
    IndexUsage,
    VectorFileQuery,
    VectorIndex,
    VectorsVersion,
    WordQuery,
)
from antiphon.wire.resources.vector_stores import FileBatch, VectorStore

from .executor import Executor, Tx, first, index_key


class SqlVectorIndex(VectorIndex, Generic[Tx]):
    """Implements ``VectorIndex`` with tables, except for what each database does in its own way:
    the search for words, and the search for vectors if it has one."""

    def __init__(self, executor: Executor[Tx]) -> None:
        self._executor = executor

    @abstractmethod
    def _any_of(self, words: Collection[str]) -> str:
        """Return the expression of a full-text search for texts with any of these words."""

    async def _index_vectors(
        self,
        transaction: Tx,
        store: int,
        file: int,
        model: str,
        vectors: Sequence[tuple[int, bytes]],
    ) -> None:
        """Add the vectors of a file to the index for the search by vectors, if there is one.
        ``store`` and ``file``: their row numbers. ``vectors``: each vector with the number of its
        chunk."""

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        row = (tenant, store.id, store.expires_at, encode(store))

        async def work(transaction: Tx) -> bool:
            if max_stores is not None:
                others = await transaction.value("count_other_vector_stores", tenant, store.id)
                if others >= max_stores:
                    return False
            await transaction.change("put_vector_store", *row)
            return True

        alone = None if max_stores is None else ("vector_stores", tenant)
        return await self._executor.write(work, alone=alone)

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        key = (tenant, index_key(store_id))
        return first(await self._executor.decoded_rows(vector_store_of, "vector_store", *key))

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(await self._executor.decoded_rows(vector_store_of, "vector_stores", tenant))

    async def delete(self, tenant: str, store_id: str) -> bool:
        key = (tenant, index_key(store_id))
        return await self._executor.change("drop_vector_store", *key, frees_space=True) > 0

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        named = None if batch is None else index_key(batch)
        return usage_of(
            await self._executor.rows("vector_usage", tenant, index_key(store_id), named)
        )

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        store_id = files[0].file.vector_store_id if batch is None else batch.vector_store_id

        async def work(transaction: Tx) -> bool:
            row = await transaction.value("lock_vector_store", tenant, index_key(store_id))
            if row is None:
                return False
            ids = [indexed.file.id for indexed in files]
            await transaction.change("drop_vector_files_of", row, ids)
            rows: list[Columns] = [(row, *indexed_file_row(indexed)) for indexed in files]
            await transaction.change_many("put_vector_file", rows)
            if batch is not None:
                await transaction.change("put_vector_batch", row, batch.id, encode(batch))
            return True

        return await self._executor.write(work)

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        key = (tenant, index_key(indexed.file.vector_store_id))
        id, _, *changed = indexed_file_row(indexed)

        async def work(transaction: Tx) -> bool:
            store = await transaction.value("lock_vector_store", *key)
            file = await transaction.value("lock_vector_file_in_progress", store, id)
            if file is None:
                return False
            await transaction.change("change_vector_file", file, *changed)
            vectors = []
            for chunk in chunks:
                # PostgreSQL's texts cannot hold U+0000.
                cleaned = replace(chunk, text=chunk.text.replace("\0", " "))
                number = await transaction.insert("put_chunk", store, file, *chunk_row(cleaned))
                if chunk.vector is not None:
                    # As readable as the text of the chunk, which the database searches.
                    vector = memoryview(chunk.vector)
                    await transaction.change("put_vector", number, store, file, model, vector)
                    vectors.append((number, chunk.vector))
            await self._index_vectors(transaction, store, file, model, vectors)
            return True

        return await self._executor.write(work)

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        file, body = indexed.file, encode(indexed)

        async def work(transaction: Tx) -> bool:
            key = (tenant, index_key(file.vector_store_id))
            row = await transaction.value("lock_vector_store", *key)
            labelled = await transaction.change(
                "label_vector_file", row, file.id, file.status, body
            )
            return labelled > 0

        return await self._executor.write(work)

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        key = (tenant, index_key(store_id), index_key(file_id))
        return first(await self._executor.decoded_rows(indexed_file_of, "vector_file", *key))

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        key = (tenant, index_key(store_id))
        return tuple(await self._executor.decoded_rows(indexed_file_of, "vector_files", *key))

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        name = "newest_vector_files" if query.newest_first else "oldest_vector_files"
        ids = (store_id, query.after, query.until)
        keys = (None if id is None else index_key(id) for id in ids)
        batch = None if query.batch is None else index_key(query.batch)
        arguments = (tenant, *keys, query.status, batch, query.limit)
        return tuple(await self._executor.decoded_rows(indexed_file_of, name, *arguments))

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        key = (tenant, index_key(store_id), index_key(file_id))
        return await self._executor.change("drop_vector_file", *key, frees_space=True) > 0

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        key = (tenant, index_key(store_id), index_key(batch_id))
        return first(await self._executor.decoded_rows(file_batch_of, "vector_batch", *key))

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        key = (tenant, index_key(store_id), index_key(file_id))
        rows = await self._executor.rows("chunks", *key)
        return tuple(IndexedChunk(start=start, text=text) for start, text in rows)

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        key = (tenant, index_key(store_id), sorted(chunks))
        return {row[0]: row[1] for row in await self._executor.rows("chunk_texts", *key)}

    async def search_words(
        self, tenant: str, store_id: str, query: WordQuery
    ) -> tuple[ChunkHit, ...]:
        if not query.words:
            return ()
        asked = (self._any_of(query.words), sorted(query.files), query.limit)
        rows = await self._executor.rows("search_chunks", tenant, index_key(store_id), *asked)
        return tuple(ChunkHit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows)

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        (found,) = await self._executor.rows("vector_mark", tenant, index_key(store_id), model)
        return VectorsVersion(*found)

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        rows = await self._executor.rows("vector_matrix", tenant, index_key(store_id), model)
        return await asyncio.to_thread(ChunkVectors.from_rows, rows)

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        rows = await self._executor.rows("unfinished_vector_files")
        return tuple(
            IndexingTask(tenant=who, store_id=store, file_id=file) for who, store, file in rows
        )
