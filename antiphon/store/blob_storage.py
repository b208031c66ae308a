"""The contract of the blob storage in which a store can keep large responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from .files import BlobRef

__all__ = ["BlobStorage"]


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
