"""The contract of the blob storage in which a store can keep large responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from .files import BlobRef

__all__ = ["BlobStorage", "NoBlobResponses"]


class BlobStorage(Protocol):
    """The methods of ``antiphon.blobs.base.Blobs`` that a store needs."""

    async def put(self, chunks: AsyncIterator[bytes]) -> BlobRef:
        """Store content under a new key, and return a reference to the blob. Raises
        ``StoreError``."""

    def read(
        self, blob: BlobRef, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a blob from ``start`` up to, but not including, ``end``. If ``end`` is
        None, read to the end of the blob. Raises ``StoreError``."""

    async def delete(self, key: str) -> None:
        """Delete a blob if it exists. Raises ``StoreError``."""


class NoBlobResponses:
    """Base class of stores that have no blobs: they keep all contents of responses in the database
    or in memory. So the methods for blobs of responses do nothing."""

    def use_blobs(self, blobs: BlobStorage, min_bytes: int) -> None:
        """Do nothing."""

    async def has_blobs(self) -> bool:
        """Return False."""
        return False

    async def move_blobs(self, source: BlobStorage | None, target: BlobStorage | None) -> int:
        """Move nothing."""
        return 0
