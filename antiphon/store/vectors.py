"""The contract of a vector index: files cut into chunks, found by their words or their vectors.

The index ranks chunks by words. It may also rank them by vectors; if it does not, its callers do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.wire.resources.vector_stores import (
    FileBatch,
    FileCounts,
    VectorStore,
    VectorStoreFile,
)

__all__ = [
    "ChunkHit",
    "ChunkVectors",
    "IndexUsage",
    "IndexedChunk",
    "IndexedFile",
    "IndexingTask",
    "VectorFileQuery",
    "VectorIndex",
    "VectorsVersion",
]


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store: its indexing status, its name, and the batch that added it."""

    file: VectorStoreFile
    filename: str
    batch: str | None = None


class VectorFileQuery(Struct, frozen=True, kw_only=True):
    """A page of the files of a vector store: at most ``limit``, in this order, after the file
    ``after`` and before the file ``until``. ``status`` and ``batch`` restrict it to files with this
    status or of this batch; None means no restriction."""

    limit: int
    newest_first: bool = False
    after: str | None = None
    until: str | None = None
    status: str | None = None
    batch: str | None = None


class IndexedChunk(Struct, frozen=True, kw_only=True):
    """A piece of a file's text. ``start``: offset in characters. ``vector``: packed 32-bit
    floats."""

    start: int
    text: str
    vector: bytes | None = None


class ChunkHit(Struct, frozen=True, kw_only=True):
    """A chunk that matches a search, by its number. Scores can only be compared within one search;
    higher is better.
    """

    chunk: int
    file_id: str
    score: float = 0.0


class VectorsVersion(Struct, frozen=True):
    """A value that differs whenever the vectors of a vector store have changed."""

    last: int
    count: int


class ChunkVectors(Struct, frozen=True, kw_only=True):
    """The vectors of a vector store, concatenated."""

    chunks: tuple[int, ...]
    file_ids: tuple[str, ...]
    vectors: bytes

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, str, bytes]]) -> ChunkVectors:
        """Return the vectors of rows with the number of the chunk, the id of its file and its
        vector."""
        return cls(
            chunks=tuple(row[0] for row in rows),
            file_ids=tuple(row[1] for row in rows),
            vectors=b"".join(row[2] for row in rows),
        )


class IndexUsage(Struct, frozen=True, kw_only=True):
    """Number of files by status, and index size in bytes, of a vector store or a batch."""

    counts: FileCounts
    bytes: int


class IndexingTask(Struct, frozen=True, kw_only=True):
    """A file that waits to be indexed."""

    tenant: str
    store_id: str
    file_id: str


class VectorIndex(Protocol):
    """The contract. All methods are per tenant: the id of another tenant is unknown.

    An unknown vector store behaves like an empty one. Deleting a file from the store removes it
    from all vector stores.
    """

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        """Store a new vector store, or changes of an existing one.

        False, and nothing is stored, if it is new and the tenant has ``max_stores`` already. That
        is exact under concurrency.
        """

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        """Return the vector store, or None."""

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        """Return all vector stores in the order of creation."""

    async def delete(self, tenant: str, store_id: str) -> bool:
        """Delete a vector store with its contents. False if it is unknown."""

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        """Return counts and size of a vector store, or of one of its batches."""

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        """Add files of one vector store and the batch they belong to. Files with the same ids are
        replaced and lose their chunks. False if the vector store is unknown.
        """

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        """Store the result of indexing a file. False, and nothing is stored, if the file is no
        longer in progress. ``model``: the model that computed the vectors.
        """

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        """Store new attributes of a file. False if it is unknown or its status changed
        meanwhile."""

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        """Return the file, or None."""

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        """Return all files in the order they were added."""

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        """Return a page of files, in the order they were added or the reverse. If ``query`` names
        an unknown file as a boundary, the page is empty."""

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        """Remove a file. False if it is unknown."""

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        """Return the batch, or None."""

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        """Return the chunks of a file in order, without vectors."""

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        """Return the texts of chunks by chunk number."""

    async def search_words(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[ChunkHit, ...]:
        """Return the chunks of these files that contain any of the words, best first."""

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        """Return the version of a model's vectors."""

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        """Return all vectors of a model."""

    async def search_vectors(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: bytes,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...] | None:
        """Return the chunks of these files that are nearest to a vector of the model, nearest
        first. ``files``: None for all. Scores are cosines. None instead of chunks: this index has
        no vector search, and callers compare the vectors."""

    async def check(self) -> None:
        """Raise ``StoreError`` if the vector search does not answer."""

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        """Return the files of all tenants that are in progress, oldest first."""
