"""The contract of a vector index. It holds the chunks of the files in vector stores, and finds
chunks by words or by vectors.

Every index can search by words. Some indexes cannot search by vectors. The callers of such an index
load the vectors and compare them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any, Protocol

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
    "VectorQuery",
    "VectorsVersion",
    "WordQuery",
]


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store: its indexing status, its name, and the batch that added it."""

    file: VectorStoreFile
    filename: str
    batch: str | None = None


class VectorFileQuery(Struct, frozen=True, kw_only=True):
    """A query for a page of the files of a vector store.

    - ``limit``: the maximum number of files.
    - ``newest_first``: whether the newest files come first.
    - ``after``: the id of the file before the page. None: the page begins with the first file.
    - ``until``: the id of the file before which the page stops. None: the page may go to the end.
    - ``status``: select only files with this status. None: select files with any status.
    - ``batch``: select only files of this batch. None: select files of any batch or of no batch.
    """

    limit: int
    newest_first: bool = False
    after: str | None = None
    until: str | None = None
    status: str | None = None
    batch: str | None = None


class WordQuery(Struct, frozen=True, kw_only=True):
    """A search by words. ``files``: the ids of the files to search. ``limit``: the maximum number
    of hits."""

    words: Sequence[str]
    files: Collection[str]
    limit: int


class VectorQuery(Struct, frozen=True, kw_only=True):
    """A search by vectors.

    - ``model``: the model that computed the vectors.
    - ``vector``: the vector whose neighbours are wanted, packed 32-bit floats.
    - ``files``: the ids of the files to search. None: all files.
    - ``limit``: the maximum number of hits.
    """

    model: str
    vector: bytes
    files: Collection[str] | None = None
    limit: int


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
    """The version of the vectors that one model computed for a vector store. If these vectors
    change, the version changes. ``last``: the highest chunk number among these vectors. ``count``:
    the number of these vectors."""

    last: int
    count: int


class ChunkVectors(Struct, frozen=True, kw_only=True):
    """All vectors of a vector store, concatenated, with the chunk number and the file id of each
    vector."""

    chunks: tuple[int, ...]
    file_ids: tuple[str, ...]
    vectors: bytes

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]]) -> ChunkVectors:
        """Create a ``ChunkVectors`` from rows with three columns: the number of a chunk, the id of
        its file and its vector."""
        return cls(
            chunks=tuple(row[0] for row in rows),
            file_ids=tuple(row[1] for row in rows),
            vectors=b"".join(row[2] for row in rows),
        )


class IndexUsage(Struct, frozen=True, kw_only=True):
    """The number of files by status, and the size of the index in bytes. Both are for one vector
    store, or for one batch of files in it."""

    counts: FileCounts
    bytes: int


class IndexingTask(Struct, frozen=True, kw_only=True):
    """A file of a vector store that is still to be indexed."""

    tenant: str
    store_id: str
    file_id: str


class VectorIndex(Protocol):
    """The contract of a vector index. All methods are per tenant. The id of another tenant's object
    counts as unknown.

    Searches and lists find nothing in an unknown vector store, but raise no error. If a file is
    deleted from the file store, it is also removed from all vector stores of its tenant.
    """

    @abstractmethod
    async def put(self, tenant: str, store: VectorStore, *, max_stores: int | None = None) -> bool:
        """Store a new vector store, or changes of an existing one.

        Returns False and stores nothing if the vector store is new and the tenant already has
        ``max_stores`` vector stores. Concurrent calls cannot together exceed this limit.
        """

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        """Return the vector store. Returns None if it is unknown."""
        stores = await self.list_stores(tenant)
        return next((store for store in stores if store.id == store_id), None)

    @abstractmethod
    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        """Return all vector stores of a tenant in the order of creation."""

    @abstractmethod
    async def delete(self, tenant: str, store_id: str) -> bool:
        """Delete a vector store with its contents. Returns False if the vector store is unknown."""

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        """Return the file counts and the size of a vector store. If ``batch`` is given, count only
        the files of this batch, and return their size."""
        files = await self.list_files(tenant, store_id)
        selected = [each.file for each in files if batch in (None, each.batch)]
        counts = Counter[str](file.status for file in selected)
        return IndexUsage(
            counts=FileCounts(**counts, total=len(selected)),
            bytes=sum(file.usage_bytes for file in selected),
        )

    @abstractmethod
    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        """Add files to one vector store. ``batch``: the batch to which the files belong, which is
        added too; None if they belong to no batch. If the vector store already has a file, the file
        is replaced and its chunks are deleted. Returns False if the vector store is unknown."""

    @abstractmethod
    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        """Store the result of indexing a file. ``indexed``: the file with its new status.
        ``model``: the model that computed the vectors of the chunks. Returns False and stores
        nothing if the stored status of the file is no longer ``in_progress``."""

    @abstractmethod
    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        """Store new attributes of a file. ``indexed``: the file as the caller read it, but with the
        new attributes. Returns False if the file is unknown, or if the status of the file has
        changed since the caller read it."""

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        """Return the status and the name of a file in a vector store. Returns None if the file is
        unknown."""
        files = await self.list_files(tenant, store_id)
        return next((each for each in files if each.file.id == file_id), None)

    @abstractmethod
    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        """Return all files of a vector store in the order they were added."""

    async def list_file_page(
        self, tenant: str, store_id: str, query: VectorFileQuery
    ) -> tuple[IndexedFile, ...]:
        """Return a page of the files of a vector store, in the order in which they were added or in
        the reverse order. The page is empty if the vector store does not have the file whose id is
        ``query.after`` or ``query.until``."""
        files = await self.list_files(tenant, store_id)
        ordered = files[::-1] if query.newest_first else files
        ids = [each.file.id for each in ordered]
        if any(id not in ids for id in (query.after, query.until) if id is not None):
            return ()
        start = 0 if query.after is None else ids.index(query.after) + 1
        stop = None if query.until is None else ids.index(query.until)
        selected = (
            each
            for each in ordered[start:stop]
            if query.status in (None, each.file.status) and query.batch in (None, each.batch)
        )
        return tuple(islice(selected, query.limit))

    @abstractmethod
    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        """Remove a file from a vector store. Returns False if the file is unknown."""

    @abstractmethod
    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        """Return a batch of files of a vector store. Returns None if the batch is unknown."""

    @abstractmethod
    async def list_chunks(
        self, tenant: str, store_id: str, file_id: str
    ) -> tuple[IndexedChunk, ...]:
        """Return the chunks of a file in order, without vectors."""

    @abstractmethod
    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        """Return the texts of these chunks by chunk number."""

    @abstractmethod
    async def search_words(
        self, tenant: str, store_id: str, query: WordQuery
    ) -> tuple[ChunkHit, ...]:
        """Return the chunks that contain at least one of the words, best first."""

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        """Return the version of the vectors that this model computed for a vector store. The
        version shows whether vectors that were loaded earlier are still current."""
        chunks = (await self.load_vectors(tenant, store_id, model)).chunks
        return VectorsVersion(max(chunks, default=0), len(chunks))

    @abstractmethod
    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        """Return all vectors that this model computed for a vector store."""

    async def search_vectors(
        self, tenant: str, store_id: str, query: VectorQuery
    ) -> tuple[ChunkHit, ...] | None:
        """Return the chunks whose vectors are nearest to ``query.vector``, nearest first. Scores
        are cosines.

        Returns None if this index cannot search by vectors. The caller then loads the vectors and
        compares them.
        """
        return None

    @abstractmethod
    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        """Return the files that are being indexed, of all tenants, oldest first."""
