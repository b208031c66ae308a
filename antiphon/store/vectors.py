"""The contract of kept vector stores: files cut into chunks that can be found by their words, with
vectors to be found by what they mean. It ranks by words; what vectors mean it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.wire.vector_stores import FileBatch, FileCounts, VectorStore, VectorStoreFile

__all__ = [
    "Chunk",
    "ChunkHit",
    "ChunkVectors",
    "IndexUsage",
    "IndexedFile",
    "IndexingTask",
    "VectorIndex",
    "VectorsVersion",
]


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store: how far it is, what it is called, and with which batch it came."""

    file: VectorStoreFile
    filename: str
    batch: str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """A piece of a file's text. ``start``: in characters. ``vector``: 32-bit floats, packed."""

    start: int
    text: str
    vector: bytes | None = None


class ChunkHit(Struct, frozen=True, kw_only=True):
    """A chunk that was found, by its number. More ``score`` is better; of use only to compare."""

    chunk: int
    file_id: str
    score: float = 0.0


class VectorsVersion(Struct, frozen=True):
    """Differs whenever the vectors of a vector store do."""

    last: int
    count: int


class ChunkVectors(Struct, frozen=True, kw_only=True):
    """The vectors of a vector store, one behind the other."""

    chunks: tuple[int, ...]
    file_ids: tuple[str, ...]
    vectors: bytes


class IndexUsage(Struct, frozen=True, kw_only=True):
    """What there is in a vector store or a batch. ``bytes``: of what was made of the files."""

    counts: FileCounts
    bytes: int


class IndexingTask(Struct, frozen=True, kw_only=True):
    """A file that is still to be made searchable."""

    tenant: str
    store_id: str
    file_id: str


class VectorIndex(Protocol):
    """All methods are per tenant: a foreign id is an unknown id. Who is asked for something in an
    unknown vector store answers as if it were empty. A file that is deleted from the store is gone
    from all vector stores."""

    async def put(self, tenant: str, store: VectorStore) -> None:
        """Keep a new one, or what is changed of one that exists."""

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        """As it was kept, or None."""

    async def list_stores(self, tenant: str) -> tuple[VectorStore, ...]:
        """In the order they were made."""

    async def delete(self, tenant: str, store_id: str) -> bool:
        """Forget it with all that is in it. False if it is unknown."""

    async def usage(self, tenant: str, store_id: str, batch: str | None = None) -> IndexUsage:
        """How far its files are, or those of a batch."""

    async def add_files(
        self, tenant: str, files: Sequence[IndexedFile], batch: FileBatch | None
    ) -> bool:
        """Keep files of one vector store, in place of those of the same ids and without their
        chunks, and the batch they came with. False if the vector store is unknown."""

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[Chunk], model: str
    ) -> bool:
        """Keep what became of a file, if it is still in progress; else False, and nothing is
        kept. ``model``: whose vectors they are."""

    async def update_attributes(self, tenant: str, indexed: IndexedFile) -> bool:
        """Keep other attributes of a file. False if it is unknown, or its status is another by
        now."""

    async def get_file(self, tenant: str, store_id: str, file_id: str) -> IndexedFile | None:
        """The file, or None."""

    async def list_files(self, tenant: str, store_id: str) -> tuple[IndexedFile, ...]:
        """All files, in the order they were added."""

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> bool:
        """Take a file out. False if it is unknown."""

    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        """As it was kept, or None."""

    async def list_chunks(self, tenant: str, store_id: str, file_id: str) -> tuple[Chunk, ...]:
        """The pieces of a file in order, without vectors."""

    async def chunk_texts(
        self, tenant: str, store_id: str, chunks: Collection[int]
    ) -> dict[int, str]:
        """The texts of chunks by their numbers."""

    async def search_words(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[ChunkHit, ...]:
        """The chunks of these files that hold any of the words, the best first."""

    async def vectors_version(self, tenant: str, store_id: str, model: str) -> VectorsVersion:
        """Of the vectors of a model."""

    async def load_vectors(self, tenant: str, store_id: str, model: str) -> ChunkVectors:
        """All vectors of a model."""

    async def list_unfinished(self) -> tuple[IndexingTask, ...]:
        """Files of all tenants that are in progress, the oldest first."""
