"""Vector stores in PostgreSQL: as in SQLite, but words are ranked by its own text search."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

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

from .pool import ConnectionPool, Transaction, key

__all__ = ["PostgresVectors"]


class PostgresVectors:
    """``Vectors`` over a cluster."""

    def __init__(self, cluster: ConnectionPool) -> None:
        self._cluster = cluster

    async def put(self, tenant: str, store: VectorStore) -> None:
        row = (tenant, store.id, store.expires_at, encode(store))
        await self._cluster.rows("put_vector_store", *row)

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        found = await self._cluster.shaped(vector_store_of, "vector_store", tenant, key(store_id))
        return found[0] if found else None

    async def all(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(await self._cluster.shaped(vector_store_of, "vector_stores", tenant))

    async def drop(self, tenant: str, store_id: str) -> bool:
        return bool(await self._cluster.rows("drop_vector_store", tenant, key(store_id)))

    async def held(self, tenant: str, store_id: str, batch: str | None = None) -> Held:
        named = None if batch is None else key(batch)
        return held_of(await self._cluster.rows("vector_held", tenant, key(store_id), named))

    async def add(self, tenant: str, entries: Sequence[Entry], batch: FileBatch | None) -> bool:
        store_id = entries[0].file.vector_store_id if batch is None else batch.vector_store_id
        async with self._cluster.transaction() as inside:
            row = await self._row(inside, tenant, store_id)
            if row is None:
                return False
            ids = [entry.file.id for entry in entries]
            await inside.rows("drop_vector_files_of", row, ids)
            for entry in entries:
                await inside.rows("put_vector_file", row, *entry_row(entry))
            if batch is not None:
                await inside.rows("put_vector_batch", row, batch.id, encode(batch))
            return True

    async def settle(self, tenant: str, entry: Entry, chunks: Sequence[Chunk], model: str) -> bool:
        async with self._cluster.transaction() as inside:
            row = await self._row(inside, tenant, entry.file.vector_store_id)
            found = await inside.rows("settle_vector_file", row, *_changed(entry))
            if not found:
                return False
            file = found[0][0]
            for chunk in chunks:
                # U+0000 stands in no text of PostgreSQL.
                kept = replace(chunk, text=chunk.text.replace("\0", " "))
                number = await inside.value("put_chunk", row, file, *chunk_row(kept))
                if chunk.vector is not None:
                    await inside.rows("put_vector", number, row, file, model, chunk.vector)
            return True

    async def label(self, tenant: str, entry: Entry) -> bool:
        async with self._cluster.transaction() as inside:
            row = await self._row(inside, tenant, entry.file.vector_store_id)
            file, body = entry.file, encode(entry)
            labelled = await inside.rows("label_vector_file", row, file.id, file.status, body)
            return bool(labelled)

    async def entry(self, tenant: str, store_id: str, file_id: str) -> Entry | None:
        place = (tenant, key(store_id), key(file_id))
        found = await self._cluster.shaped(entry_of, "vector_file", *place)
        return found[0] if found else None

    async def entries(self, tenant: str, store_id: str) -> tuple[Entry, ...]:
        return tuple(await self._cluster.shaped(entry_of, "vector_files", tenant, key(store_id)))

    async def remove(self, tenant: str, store_id: str, file_id: str) -> bool:
        place = (tenant, key(store_id), key(file_id))
        return bool(await self._cluster.rows("drop_vector_file", *place))

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        place = (tenant, key(store_id), key(batch_id))
        found = await self._cluster.shaped(batch_in_of, "vector_batch", *place)
        return found[0] if found else None

    async def chunks(self, tenant: str, store_id: str, file_id: str) -> tuple[Chunk, ...]:
        rows = await self._cluster.rows("chunks", tenant, key(store_id), key(file_id))
        return tuple(Chunk(start=start, text=text) for start, text in rows)

    async def texts(self, tenant: str, store_id: str, chunks: Collection[int]) -> dict[int, str]:
        rows = await self._cluster.rows("chunk_texts", tenant, key(store_id), sorted(chunks))
        return {row[0]: row[1] for row in rows}

    async def found(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[Hit, ...]:
        asked = " | ".join(_quoted(word) for word in words)
        place = (tenant, key(store_id))
        rows = await self._cluster.rows("chunks_found", *place, asked, sorted(files), limit)
        return tuple(Hit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows)

    async def mark(self, tenant: str, store_id: str, model: str) -> Mark:
        (found,) = await self._cluster.rows("vector_mark", tenant, key(store_id), model)
        return Mark(*found)

    async def matrix(self, tenant: str, store_id: str, model: str) -> Matrix:
        rows = await self._cluster.rows("vector_matrix", tenant, key(store_id), model)
        return Matrix(
            chunks=tuple(row[0] for row in rows),
            file_ids=tuple(row[1] for row in rows),
            vectors=b"".join(row[2] for row in rows),
        )

    async def unfinished(self) -> tuple[Work, ...]:
        rows = await self._cluster.rows("unfinished_vector_files")
        return tuple(Work(tenant=who, store_id=store, file_id=file) for who, store, file in rows)

    async def expire(self, inside: Transaction, now: int) -> None:
        """Forget what is in those whose time has come, within a transaction."""
        await inside.rows("expire_vector_files", now)

    async def _row(self, inside: Transaction, tenant: str, store_id: str) -> int | None:
        """Kept from being dropped until the end of the transaction."""
        found = await inside.rows("hold_vector_store", tenant, key(store_id))
        return found[0][0] if found else None


def _changed(entry: Entry) -> tuple[object, ...]:
    """id, status, bytes, body."""
    id, _, status, size, body = entry_row(entry)
    return id, status, size, body


def _quoted(word: str) -> str:
    return "'{}'".format(word.replace("\\", "\\\\").replace("'", "''").replace("\0", " "))
