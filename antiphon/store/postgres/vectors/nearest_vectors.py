"""The contract of a search for nearest vectors in a PostgreSQL store, and the choice of its
implementation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.vector_setting import EXACT, PGVECTOR
from antiphon.store.vectors import ChunkHit

__all__ = ["NearestVectors", "VectorRow", "open_nearest"]


class VectorRow(Struct, frozen=True):
    """A vector, as packed 32-bit floats, with the number of its chunk and the row number of its
    file."""

    chunk: int
    file: int
    vector: bytes


class NearestVectors(Protocol):
    """The contract of a search for nearest vectors. The table ``chunk_vectors`` always contains all
    vectors. An implementation may search a copy of these vectors, for example in Qdrant."""

    async def add(
        self, transaction: Transaction, store: int, model: str, rows: Sequence[VectorRow]
    ) -> None:
        """Add vectors to one vector store. ``store``: the row number of the vector store; the
        transaction has locked this row. ``model``: the model that computed the vectors."""

    async def settle(self, tenant: str, store_id: str, model: str) -> None:
        """Do the slow part of adding vectors, such as creating an index. Called after the
        transaction of ``add`` has committed, because this part would keep the transaction open for
        too long."""

    async def search(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: bytes,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...]:
        """Return the chunks with the nearest vectors, nearest first. The parameters are those of
        ``VectorIndex.search_vectors``."""

    async def check(self) -> None:
        """Raise ``StoreError`` if vectors cannot be searched now."""

    async def close(self) -> None:
        """Close the connections that this implementation has opened, and end its background
        tasks."""


async def open_nearest(
    pool: ConnectionPool, vectors: str, *, key: str | None = None
) -> NearestVectors | None:
    """Open the implementation of ``NearestVectors`` that the setting ``vectors`` selects. Returns
    None if the setting is "exact". The caller then reads the vectors and compares them itself.
    ``key``: the API key of Qdrant. Raises ``SetupError``."""
    if vectors == EXACT:
        return None
    if vectors == PGVECTOR:
        from .pgvector import Pgvector

        return await Pgvector.open(pool)
    from .qdrant import Qdrant

    return await Qdrant.open(pool, vectors, key=key)
