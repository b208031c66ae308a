"""The contract of blob storage. A blob is the content of a file, stored outside of the store.

The store records which blob belongs to which file (``antiphon.store.files``). Blob storage knows
only the keys of blobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from msgspec import Struct

from antiphon.store.files import BlobRef

__all__ = ["Blobs", "ListedBlob"]


class ListedBlob(Struct, frozen=True):
    """The key of a blob, and the time when its content was last written, in Unix seconds."""

    key: str
    modified_at: float


class Blobs(Protocol):
    """The contract of blob storage. Methods raise ``StoreError`` if the storage does not answer, or
    if content is missing or damaged. Keys are never reused."""

    async def put(self, chunks: AsyncIterator[bytes]) -> BlobRef:
        """Store content under a new key. Return a reference to it when the content is durable.

        Memory use does not depend on the size of the content. If ``chunks`` raises or the call is
        cancelled, parts may remain under the key. The collector (``BlobCollector``) deletes them
        later.
        """

    def read(
        self, blob: BlobRef, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to, but not including, ``end``. If the range is the
        whole content, its checksum is verified before the last chunk is yielded."""

    async def delete(self, key: str) -> None:
        """Delete the content under a key. Do nothing if the key does not exist."""

    def list(self) -> AsyncGenerator[ListedBlob, None]:
        """Yield the keys of all blobs of this store, including blobs of unfinished uploads. A key
        may be yielded more than once."""

    async def sign(self, blob: BlobRef, lifetime_s: float) -> str | None:
        """Return a URL from which anybody can download the content for ``lifetime_s`` seconds.
        Return None if the storage does not support such URLs."""

    async def remove_leftovers(self, before: float) -> None:
        """Delete temporary files of crashed uploads that are older than a time in Unix seconds.
        ``list`` does not yield these files."""
