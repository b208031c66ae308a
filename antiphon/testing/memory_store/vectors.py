"""The in-memory vector index, the reference implementation of the contract ``VectorIndex``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct, field

from antiphon.store.common.search_terms import index_terms
from antiphon.store.records import exceeds
from antiphon.store.vectors import (
    ChunkHit,
    ChunkVectors,
    IndexedChunk,
    IndexedFile,
    IndexingTask,
    VectorIndex,
    WordQuery,
)
from antiphon.wire.resources.vector_stores import FileBatch, VectorStore

from .part import Part
from .values import drop_tenant

_WORD = re.compile(r"\w+")
#: BM25's usual constants.
_K1, _B = 1.2, 0.75


class _ChunkRow(Struct):
    """A chunk with its number and the model that computed its vector."""

    number: int
    chunk: IndexedChunk
    model: str


class _FileRow(Struct):
    indexed: IndexedFile
    chunks: list[_ChunkRow] = field(default_factory=list)


class _StoreRow(Struct):
    store: VectorStore
    files: dict[str, _FileRow] = field(default_factory=dict)
    batches: dict[str, FileBatch] = field(default_factory=dict)

    def chunks(self) -> Iterator[tuple[str, _ChunkRow]]:
        """Yield all chunks, each with the id of its file."""
        for id, file_row in self.files.items():
            for chunk_row in file_row.chunks:
                yield id, chunk_row


class MemoryVectorIndex(Part, VectorIndex):
    """Stores the chunks of vector stores in dictionaries, and searches them. Implements
    ``VectorIndex``."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(check)
        self._stores: dict[tuple[str, str], _StoreRow] = {}
        self._last_number = 0

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        is_new = (tenant, store.id) not in self._stores
        if is_new and exceeds(self.count(tenant) + 1, max_stores):
            return False
        store_row = self._stores.setdefault((tenant, store.id), _StoreRow(store))
        store_row.store = store
        return True

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        return tuple(store_row.store for key, store_row in self._stores.items() if key[0] == tenant)

    async def delete(self, tenant: str, store_id: str) -> bool:
        return self._stores.pop((tenant, store_id), None) is not None

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        store_id = files[0].file.vector_store_id if batch is None else batch.vector_store_id
        store_row = self._store(tenant, store_id)
        if store_row is None:
            return False
        for indexed in files:
            store_row.files.pop(indexed.file.id, None)
            store_row.files[indexed.file.id] = _FileRow(indexed)
        if batch is not None:
            store_row.batches[batch.id] = batch
        return True

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        file_row = self._file_row(tenant, indexed.file.vector_store_id, indexed.file.id)
        if file_row is None or file_row.indexed.file.status != "in_progress":
            return False
        file_row.indexed = indexed
        for chunk in chunks:
            self._last_number += 1
            file_row.chunks.append(_ChunkRow(self._last_number, chunk, model))
        return True

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        file_row = self._file_row(tenant, indexed.file.vector_store_id, indexed.file.id)
        if file_row is None or file_row.indexed.file.status != indexed.file.status:
            return False
        file_row.indexed = indexed
        return True

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        store_row = self._store(tenant, store_id)
        return (
            tuple(file_row.indexed for file_row in store_row.files.values())
            if store_row is not None
            else ()
        )

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        store_row = self._store(tenant, store_id)
        return store_row is not None and store_row.files.pop(file_id, None) is not None

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        store_row = self._store(tenant, store_id)
        return store_row.batches.get(batch_id) if store_row is not None else None

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        file_row = self._file_row(tenant, store_id, file_id)
        chunks = (chunk_row.chunk for chunk_row in file_row.chunks) if file_row is not None else ()
        return tuple(IndexedChunk(start=chunk.start, text=chunk.text) for chunk in chunks)

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        store_row = self._store(tenant, store_id)
        rows = store_row.chunks() if store_row is not None else ()
        return {
            chunk_row.number: chunk_row.chunk.text
            for _, chunk_row in rows
            if chunk_row.number in chunks
        }

    async def search_words(
        self, tenant: str, store_id: str, query: WordQuery
    ) -> tuple[ChunkHit, ...]:
        store_row = self._store(tenant, store_id)
        rows = (
            [(id, chunk_row) for id, chunk_row in store_row.chunks()]
            if store_row is not None
            else []
        )
        counts = [Counter(_index_words(chunk_row.chunk.text)) for _, chunk_row in rows]
        scores = _bm25(counts, {word.lower() for word in query.words})
        hits = [
            ChunkHit(chunk=chunk_row.number, file_id=id, score=score)
            for (id, chunk_row), score in zip(rows, scores, strict=True)
            if score and id in query.files
        ]
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.chunk))[: query.limit])

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        store_row = self._store(tenant, store_id)
        chunk_rows = store_row.chunks() if store_row is not None else ()
        rows = [
            (chunk_row.number, id, chunk_row.chunk.vector)
            for id, chunk_row in chunk_rows
            if chunk_row.chunk.vector is not None and chunk_row.model == model
        ]
        return ChunkVectors.from_rows(rows)

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        return tuple(
            IndexingTask(tenant=tenant, store_id=store_id, file_id=id)
            for (tenant, store_id), store_row in self._stores.items()
            for id, file_row in store_row.files.items()
            if file_row.indexed.file.status == "in_progress"
        )

    def count(self, tenant: str) -> int:
        """Return the number of a tenant's vector stores."""
        return sum(owner == tenant for owner, _ in self._stores)

    def delete_tenant(self, tenant: str) -> int:
        """Delete the vector stores of a tenant. Return their number."""
        return drop_tenant(self._stores, tenant)

    def expire(self, now: int) -> None:
        """Empty each expired vector store: remove all its files. ``now``: the current time in unix
        seconds."""
        for store_row in self._stores.values():
            if store_row.store.expires_at is not None and store_row.store.expires_at <= now:
                store_row.files.clear()

    def forget_file(self, tenant: str, file_id: str) -> None:
        """Remove a deleted file from all vector stores."""
        for (owner, _), store_row in self._stores.items():
            if owner == tenant:
                store_row.files.pop(file_id, None)

    def _store(self, tenant: str, store_id: str) -> _StoreRow | None:
        return self._stores.get((tenant, store_id))

    def _file_row(self, tenant: str, store_id: str, file_id: str) -> _FileRow | None:
        store_row = self._store(tenant, store_id)
        return store_row.files.get(file_id) if store_row is not None else None


def _index_words(text: str) -> list[str]:
    return _WORD.findall(index_terms(text).lower())


def _bm25(counts: Sequence[Counter[str]], words: Collection[str]) -> list[float]:
    lengths = [count.total() for count in counts]
    mean_length = sum(lengths) / len(lengths) if counts else 0.0
    document_counts = {word: sum(word in count for count in counts) for word in words}
    weights = {
        word: math.log(1 + (len(counts) - count + 0.5) / (count + 0.5))
        for word, count in document_counts.items()
    }
    return [
        sum(
            weights[word]
            * frequency
            * (_K1 + 1)
            / (frequency + _K1 * (1 - _B + _B * length / mean_length))
            for word in words
            if (frequency := count[word])
        )
        for count, length in zip(counts, lengths, strict=True)
    ]
