"""The contract of blobs: contents of files outside of the store.

The store says which blobs have files (``antiphon.store.files``); blobs know nothing of files.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from msgspec import Struct

from antiphon.store.files import BlobRef

__all__ = ["Blobs", "ListedBlob"]


class ListedBlob(Struct, frozen=True):
    """A key, and when something was last written under it, in unix seconds."""

    key: str
    modified_at: float


class Blobs(Protocol):
    """The contract. Methods raise ``StoreError`` if the storage does not answer or content is
    missing or damaged. Keys are never used again.
    """

    async def put(self, chunks: AsyncIterator[bytes]) -> BlobRef:
        """Store content under a new key. Return when it is durable.

        Needs no memory that grows with the content. If ``chunks`` raises or the call is cancelled,
        parts may stay under the key: the collector deletes them.
        """

    def read(
        self, blob: BlobRef, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to ``end``, which is excluded. Content that is read as
        a whole is compared with its checksum before the last chunk is yielded."""

    async def delete(self, key: str) -> None:
        """Delete what is stored under a key, if there is anything."""

    def list(self) -> AsyncGenerator[ListedBlob, None]:
        """Yield all keys of this store's blobs, also those of unfinished uploads. A key may come
        more than once."""

    async def sign(self, blob: BlobRef, lifetime_s: float) -> str | None:
        """Return a URL from which anybody can download the content for ``lifetime_s`` seconds;
        None if there is none."""

    async def remove_leftovers(self, before: float) -> None:
        """Delete what crashed uploads left, before a unix time, and ``list`` does not show."""
