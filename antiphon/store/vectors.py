"""The contract of a vector index. Files are cut into chunks, which are found by their words or by
their vectors.

The index ranks chunks by words. An index may also rank chunks by vectors. If it does not, its
callers do.
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
    """A query for a page of the files of a vector store: at most ``limit``, in the given order,
    after the file ``after`` and before the file ``until``. ``status`` and ``batch`` restrict the
    page to files with this status or of this batch. None means no restriction."""

    limit: int
    newest_first: bool = False
    after: str | None = None
    until: str | None = None
    status: str | None = None
    batch: str | None = None


class IndexedChunk(Struct, frozen=True, kw_only=True):
    """A piece of a file's text. ``start``: offset of the piece in the text, in characters.
    ``vector``: packed 32-bit floats; None if the piece has no vector."""

    start: int
    text: str
    vector: bytes | None = None


class ChunkHit(Struct, frozen=True, kw_only=True):
    """A chunk that matches a search. ``chunk``: the number of the chunk. Scores can only be
    compared within one search; a higher score is better."""

    chunk: int
    file_id: str
    score: float = 0.0


class VectorsVersion(Struct, frozen=True):
    """A value that changes whenever the vectors of a vector store change."""

    last: int
    count: int


class ChunkVectors(Struct, frozen=True, kw_only=True):
    """All vectors of a vector store, concatenated, with the chunk number and the file id of each
    vector."""

    chunks: tuple[int, ...]
    file_ids: tuple[str, ...]
    vectors: bytes

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, str, bytes]]) -> ChunkVectors:
        """Build the value from rows. Each row has the number of the chunk, the id of its file and
        its vector."""
        return cls(
            chunks=tuple(row[0] for row in rows),
            file_ids=tuple(row[1] for row in rows),
            vectors=b"".join(row[2] for row in rows),
        )


class IndexUsage(Struct, frozen=True, kw_only=True):
    """The number of files by status and the size of the index in bytes, for a vector store or one
    of its batches."""

    counts: FileCounts
    bytes: int


class IndexingTask(Struct, frozen=True, kw_only=True):
    """A file that is not indexed yet."""

    tenant: str
    store_id: str
    file_id: str


class VectorIndex(Protocol):
    """The contract of a vector index. All methods are per tenant. The id of another tenant's object
    counts as unknown.

    An unknown vector store behaves like an empty one. Deleting a file from the store also removes
    it from all vector stores.
    """

    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        """Store a new vector store, or changes of an existing one.

        Returns False and stores nothing if the vector store is new and the tenant already has
        ``max_stores`` vector stores. Concurrent calls cannot together exceed this limit.
        """

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        """Return the vector store. Returns None if it is unknown."""

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        """Return all vector stores of a tenant in the order of creation."""

    async def delete(self, tenant: str, store_id: str) -> bool:
        """Delete a vector store with its contents. Returns False if the vector store is unknown."""

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        """Return the file counts and the size of a vector store, or of one of its batches."""

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        """Add files to one vector store, and the batch to which they belong. A file that the vector
        store already has is replaced and loses its chunks. Returns False if the vector store is
        unknown."""

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        """Store the result of indexing a file. ``model``: the model that computed the vectors.
        Returns False and stores nothing if the file is no longer in progress."""

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        """Store new attributes of a file. Returns False if the file is unknown, or if its status
        has changed meanwhile."""

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        """Return a file of a vector store. Returns None if it is unknown."""

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        """Return all files of a vector store in the order they were added."""

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        """Return a page of files, in the order they were added or the reverse. If ``query`` names
        an unknown file as a boundary, the page is empty."""

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        """Remove a file from a vector store. Returns False if the file is unknown."""

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        """Return a batch of a vector store. Returns None if it is unknown."""

    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        """Return the chunks of a file in order, without vectors."""

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        """Return the texts of these chunks by chunk number."""

    async def search_words(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[ChunkHit, ...]:
        """Return the chunks of these files that contain at least one of the words, best first."""

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        """Return the version of the vectors that this model computed for a vector store."""

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        """Return all vectors that this model computed for a vector store."""

    async def search_vectors(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: bytes,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...] | None:
        """Return the chunks of these files whose vectors are nearest to ``vector``, nearest first.
        ``model``: the model that computed the vectors. If ``files`` is None, search all files.
        Scores are cosines. Returns None if this index has no vector search. Then the caller
        compares the vectors itself."""

    async def check(self) -> None:
        """Raise ``StoreError`` if the search for vectors does not answer."""

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        """Return the files of all tenants whose indexing is in progress, oldest first."""
