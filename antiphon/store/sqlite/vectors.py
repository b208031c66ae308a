"""Vector stores in SQLite: chunks in a table with a full text index over it, vectors in another."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from antiphon.store.row_mapping import (
    batch_in_of,
    chunk_row,
    encode,
    entry_of,
    entry_row,
    held_of,
    vector_store_of,
)
from antiphon.store.vectors import Chunk, Entry, Held, Hit, Mark, Matrix, Work
from antiphon.wire.vector_stores import FileBatch, VectorStore

from .database import Database

__all__ = ["SqliteVectors"]


class SqliteVectors:
    """``Vectors`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def put(self, tenant: str, store: VectorStore) -> None:
        row = (tenant, store.id, store.expires_at, encode(store))
        query = self._queries["put_vector_store"]
        await self._database.write(lambda connection: connection.execute(query, row))

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        found = await self._database.rows("vector_store", (tenant, store_id), vector_store_of)
        return found[0] if found else None

    async def all(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(await self._database.rows("vector_stores", (tenant,), vector_store_of))

    async def drop(self, tenant: str, store_id: str) -> bool:
        return await self._dropped("drop_vector_store", (tenant, store_id))

    async def held(self, tenant: str, store_id: str, batch: str | None = None) -> Held:
        key = (tenant, store_id, batch, batch)
        return held_of(await self._database.rows("vector_held", key, tuple))

    async def add(self, tenant: str, entries: Sequence[Entry], batch: FileBatch | None) -> bool:
        store_id = entries[0].file.vector_store_id if batch is None else batch.vector_store_id

        def work(connection: sqlite3.Connection) -> bool:
            row = self._row(connection, tenant, store_id)
            if row is None:
                return False
            ids = [(row, entry.file.id) for entry in entries]
            connection.executemany(self._queries["drop_vector_file_of"], ids)
            rows = [(row, *entry_row(entry)) for entry in entries]
            connection.executemany(self._queries["put_vector_file"], rows)
            if batch is not None:
                kept = (row, batch.id, encode(batch))
                connection.execute(self._queries["put_vector_batch"], kept)
            return True

        return await self._database.write(work)

    async def settle(self, tenant: str, entry: Entry, chunks: Sequence[Chunk], model: str) -> bool:
        file_id, store_id = entry.file.id, entry.file.vector_store_id

        def work(connection: sqlite3.Connection) -> bool:
            row = self._row(connection, tenant, store_id)
            query = self._queries["unsettled_vector_file"]
            found = connection.execute(query, (row, file_id)).fetchone()
            if found is None:
                return False
            (file,) = found
            id, _, status, size, body = entry_row(entry)
            connection.execute(self._queries["change_vector_file"], (status, size, body, row, id))
            for chunk in chunks:
                kept = (row, file, *chunk_row(chunk))
                number = connection.execute(self._queries["put_chunk"], kept).lastrowid
                if chunk.vector is not None:
                    vector = (number, row, file, model, chunk.vector)
                    connection.execute(self._queries["put_vector"], vector)
            return True

        return await self._database.write(work)

    async def label(self, tenant: str, entry: Entry) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = self._row(connection, tenant, entry.file.vector_store_id)
            labelled = (encode(entry), row, entry.file.id, entry.file.status)
            return connection.execute(self._queries["label_vector_file"], labelled).rowcount > 0

        return await self._database.write(work)

    async def entry(self, tenant: str, store_id: str, file_id: str) -> Entry | None:
        found = await self._database.rows("vector_file", (tenant, store_id, file_id), entry_of)
        return found[0] if found else None

    async def entries(self, tenant: str, store_id: str) -> tuple[Entry, ...]:
        return tuple(await self._database.rows("vector_files", (tenant, store_id), entry_of))

    async def remove(self, tenant: str, store_id: str, file_id: str) -> bool:
        return await self._dropped("drop_vector_file", (file_id, tenant, store_id))

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        key = (tenant, store_id, batch_id)
        found = await self._database.rows("vector_batch", key, batch_in_of)
        return found[0] if found else None

    async def chunks(self, tenant: str, store_id: str, file_id: str) -> tuple[Chunk, ...]:
        key = (tenant, store_id, file_id)
        rows = await self._database.rows("chunks", key, tuple)
        return tuple(Chunk(start=start, text=text) for start, text in rows)

    async def texts(self, tenant: str, store_id: str, chunks: Collection[int]) -> dict[int, str]:
        key = (tenant, store_id, encode(sorted(chunks)).decode())
        return dict(await self._database.rows("chunk_texts", key, lambda row: (row[0], row[1])))

    async def found(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[Hit, ...]:
        quoted = " OR ".join('"{}"'.format(word.replace('"', '""')) for word in words)

        def work(connection: sqlite3.Connection) -> tuple[Hit, ...]:
            row = self._row(connection, tenant, store_id)
            if row is None or not words:
                return ()
            asked = f'store : "{row}" AND text : ({quoted})'
            arguments = (asked, encode(sorted(files)).decode(), limit)
            rows = connection.execute(self._queries["chunks_found"], arguments)
            return tuple(Hit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows)

        return await self._database.read(work)

    async def mark(self, tenant: str, store_id: str, model: str) -> Mark:
        key = (tenant, store_id, model)
        return (await self._database.rows("vector_mark", key, lambda row: Mark(*row)))[0]

    async def matrix(self, tenant: str, store_id: str, model: str) -> Matrix:
        query = self._queries["vector_matrix"]

        def work(connection: sqlite3.Connection) -> Matrix:
            rows = connection.execute(query, (tenant, store_id, model)).fetchall()
            return Matrix(
                chunks=tuple(row[0] for row in rows),
                file_ids=tuple(row[1] for row in rows),
                vectors=b"".join(row[2] for row in rows),
            )

        return await self._database.read(work)

    async def unfinished(self) -> tuple[Work, ...]:
        rows = await self._database.rows("unfinished_vector_files", (), tuple)
        return tuple(Work(tenant=who, store_id=store, file_id=file) for who, store, file in rows)

    def expire(self, connection: sqlite3.Connection, now: int) -> None:
        """Forget what is in those whose time has come, within a write."""
        connection.execute(self._queries["expire_vector_files"], (now,))

    async def _dropped(self, name: str, key: tuple[str, ...]) -> bool:
        query = self._queries[name]
        return await self._database.write(
            lambda connection: connection.execute(query, key).rowcount > 0
        )

    def _row(self, connection: sqlite3.Connection, tenant: str, store_id: str) -> int | None:
        query = self._queries["vector_store_row"]
        found = connection.execute(query, (tenant, store_id)).fetchone()
        return None if found is None else int(found[0])
