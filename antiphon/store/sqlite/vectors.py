"""The SQLite vector index. One table has the chunks and a full-text index, another table has the
vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from antiphon.store.common.row_mapping import (
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

from .database import Database


class SqliteVectorIndex(VectorIndex):
    """Implements ``VectorIndex`` with tables of an SQLite database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        row = (tenant, store.id, store.expires_at, encode(store))

        def work(connection: sqlite3.Connection) -> bool:
            if max_stores is not None and self._store_row(connection, tenant, store.id) is None:
                query = self._queries["count_vector_stores"]
                (count,) = connection.execute(query, (tenant,)).fetchone()
                if count >= max_stores:
                    return False
            connection.execute(self._queries["put_vector_store"], row)
            return True

        return await self._database.write(work)

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        found = await self._database.rows("vector_store", (tenant, store_id), vector_store_of)
        return found[0] if found else None

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(await self._database.rows("vector_stores", (tenant,), vector_store_of))

    async def delete(self, tenant: str, store_id: str) -> bool:
        return await self._database.delete("drop_vector_store", (tenant, store_id)) > 0

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        key = (tenant, store_id, batch, batch)
        return usage_of(await self._database.rows("vector_usage", key, tuple))

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        store_id = files[0].file.vector_store_id if batch is None else batch.vector_store_id

        def work(connection: sqlite3.Connection) -> bool:
            row = self._store_row(connection, tenant, store_id)
            if row is None:
                return False
            ids = [(row, indexed.file.id) for indexed in files]
            connection.executemany(self._queries["drop_vector_file_of"], ids)
            rows = [(row, *indexed_file_row(indexed)) for indexed in files]
            connection.executemany(self._queries["put_vector_file"], rows)
            if batch is not None:
                columns = (row, batch.id, encode(batch))
                connection.execute(self._queries["put_vector_batch"], columns)
            return True

        return await self._database.write(work)

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        file_id, store_id = indexed.file.id, indexed.file.vector_store_id

        def work(connection: sqlite3.Connection) -> bool:
            row = self._store_row(connection, tenant, store_id)
            query = self._queries["vector_file_in_progress"]
            found = connection.execute(query, (row, file_id)).fetchone()
            if found is None:
                return False
            (file_row,) = found
            id, _, status, size, body = indexed_file_row(indexed)
            connection.execute(self._queries["change_vector_file"], (status, size, body, row, id))
            for chunk in chunks:
                columns = (row, file_row, *chunk_row(chunk))
                number = connection.execute(self._queries["put_chunk"], columns).lastrowid
                if chunk.vector is not None:
                    # As readable as the text of the chunk, which SQLite searches.
                    vector = (number, row, file_row, model, memoryview(chunk.vector))
                    connection.execute(self._queries["put_vector"], vector)
            return True

        return await self._database.write(work)

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = self._store_row(connection, tenant, indexed.file.vector_store_id)
            labelled = (encode(indexed), row, indexed.file.id, indexed.file.status)
            return connection.execute(self._queries["label_vector_file"], labelled).rowcount > 0

        return await self._database.write(work)

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        found = await self._database.rows(
            "vector_file", (tenant, store_id, file_id), indexed_file_of
        )
        return found[0] if found else None

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        return tuple(await self._database.rows("vector_files", (tenant, store_id), indexed_file_of))

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        name = "newest_vector_files" if query.newest_first else "oldest_vector_files"
        cursors = (query.after, query.until)
        arguments = (tenant, store_id, *cursors, query.status, query.batch, query.limit)
        return tuple(await self._database.rows(name, arguments, indexed_file_of))

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        return await self._database.delete("drop_vector_file", (file_id, tenant, store_id)) > 0

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        key = (tenant, store_id, batch_id)
        found = await self._database.rows("vector_batch", key, file_batch_of)
        return found[0] if found else None

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        key = (tenant, store_id, file_id)
        rows = await self._database.rows("chunks", key, tuple)
        return tuple(IndexedChunk(start=start, text=text) for start, text in rows)

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        key = (tenant, store_id, encode(sorted(chunks)).decode())
        return dict(await self._database.rows("chunk_texts", key, lambda row: (row[0], row[1])))

    async def search_words(
        self, tenant: str, store_id: str, query: WordQuery
    ) -> tuple[ChunkHit, ...]:
        quoted = " OR ".join('"{}"'.format(word.replace('"', '""')) for word in query.words)

        def work(connection: sqlite3.Connection) -> tuple[ChunkHit, ...]:
            row = self._store_row(connection, tenant, store_id)
            if row is None or not query.words:
                return ()
            expression = f'store : "{row}" AND text : ({quoted})'
            arguments = (expression, encode(sorted(query.files)).decode(), query.limit)
            rows = connection.execute(self._queries["search_chunks"], arguments)
            return tuple(
                ChunkHit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows
            )

        return await self._database.read(work)

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        key = (tenant, store_id, model)
        return (await self._database.rows("vector_mark", key, lambda row: VectorsVersion(*row)))[0]

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        query = self._queries["vector_matrix"]

        def work(connection: sqlite3.Connection) -> ChunkVectors:
            rows = connection.execute(query, (tenant, store_id, model)).fetchall()
            return ChunkVectors.from_rows(rows)

        return await self._database.read(work)

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        rows = await self._database.rows("unfinished_vector_files", (), tuple)
        return tuple(
            IndexingTask(tenant=who, store_id=store, file_id=file) for who, store, file in rows
        )

    def _store_row(self, connection: sqlite3.Connection, tenant: str, store_id: str) -> int | None:
        query = self._queries["vector_store_row"]
        found = connection.execute(query, (tenant, store_id)).fetchone()
        return None if found is None else int(found[0])
