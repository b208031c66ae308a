"""The contract of blob storage. A blob is the content of a file or of a large response, stored
outside of the store.

The store records which blob belongs to which file or response (see ``antiphon.store.files``). Blob
storage knows only the keys of blobs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from msgspec import Struct

from antiphon.store.files import BlobRef

__all__ = ["Blobs", "ListedBlob"]


class ListedBlob(Struct, frozen=True):
    """An entry of ``Blobs.list``: the key of a blob, and the time when its content was last
    written, in Unix seconds."""

    key: str
    modified_at: float


class Blobs(Protocol):
    """The contract of blob storage. Methods raise ``StoreError`` if the storage does not answer, or
    if content is missing or damaged. Keys are never reused."""

    async def put(self, chunks: AsyncIterator[bytes]) -> BlobRef:
        """Store content under a new key. Return a reference to the blob when the content is
        durable.

        Memory use does not depend on the size of the content. If ``chunks`` raises or the caller is
        cancelled, parts of the content may stay in the storage. The collector (``BlobCollector``)
        deletes them later.
        """

    def read(
        self, blob: BlobRef, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a blob from ``start`` up to, but not including, ``end``. If the whole
        content is read, the checksum of the content is verified before the last chunk is
        yielded."""

    async def delete(self, key: str) -> None:
        """Delete the content under a key. Do nothing if the key does not exist."""

    def list(self) -> AsyncGenerator[ListedBlob, None]:
        """Yield all blobs that belong to the same Antiphon store as this object, including the
        blobs of unfinished uploads. The same blob may be yielded more than once."""

    async def sign(self, blob: BlobRef, lifetime_s: float) -> str | None:
        """Return a URL from which anybody can download the content for ``lifetime_s`` seconds.
        Return None if there is no such URL, for example because the storage does not support this
        or the blob is encrypted."""

    async def remove_leftovers(self, before: float) -> None:
        """Delete the temporary files of processes that crashed during an upload. ``list`` does not
        yield these files. Only files that were last written before ``before`` (in Unix seconds) are
        deleted."""
