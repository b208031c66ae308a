"""Stream the contents of files to and from the store or external blob storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from antiphon.blobs.base import Blobs
from antiphon.errors import StoreError
from antiphon.store.files import NO_LIMITS, BlobRef, FileLimits, FileStore
from antiphon.wire.resources.files import File

#: The content of a new file, in pieces (chunks of bytes).
Chunks = AsyncIterator[bytes]


class StoredFile:
    """A stored file: its metadata, and methods that read its content from the store or from
    external blob storage. ``sha256``: the checksum of the content in hex. It is None if the content
    is in the store itself."""

    def __init__(self, file: File, content: bytes | BlobRef, blobs: Blobs | None) -> None:
        self.file = file
        self._content = content
        self._blobs = blobs
        self.sha256 = content.sha256 if isinstance(content, BlobRef) else None

    async def read(self, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to, but not including, ``end``. Raises
        ``StoreError``."""
        if not isinstance(self._content, BlobRef):
            yield self._content[start:end]
            return
        async for chunk in _require(self._blobs).read(self._content, start, end):
            yield chunk

    async def sign(self, lifetime_s: float) -> str | None:
        """Return a signed URL for downloading the content. Returns None if there is no such URL:
        the content is in the store itself, or ``Blobs.sign`` returns None."""
        if self._blobs is None or not isinstance(self._content, BlobRef):
            return None
        return await self._blobs.sign(self._content, lifetime_s)


class ContentStore:
    """Stores files with their contents. ``blobs``: external storage for the contents. None means
    that the contents are in the store, like the other data of the files."""

    def __init__(self, files: FileStore, blobs: Blobs | None = None) -> None:
        self._files = files
        self._blobs = blobs

    @property
    def is_external(self) -> bool:
        """Whether contents are in external storage, from which they are read in pieces."""
        return self._blobs is not None

    async def put(
        self, tenant: str, file: File, chunks: Chunks, limits: FileLimits = NO_LIMITS
    ) -> bool:
        """Store a new file, as ``FileStore.put`` does. ``chunks`` yields the content,
        ``file.bytes`` bytes in total. Returns False and stores nothing if the tenant's files would
        exceed ``limits``.
        """
        if self._blobs is None:
            content: bytes | BlobRef = b"".join([chunk async for chunk in chunks])
        else:
            content = await self._blobs.put(chunks)
        is_stored = await self._files.put(tenant, file, content, limits)
        if not is_stored and self._blobs is not None and isinstance(content, BlobRef):
            await self._blobs.delete(content.key)
        return is_stored

    async def open(self, tenant: str, file: File) -> StoredFile | None:
        """Return a file whose content can be read. Returns None if the file has been deleted."""
        content = await self._files.read(tenant, file.id)
        return None if content is None else StoredFile(file, content, self._blobs)


async def single_chunk(content: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the whole content as one chunk."""
    yield content


def _require(blobs: Blobs | None) -> Blobs:
    if blobs is None:
        raise StoreError("The content of this file is outside of the store (setting files).")
    return blobs
