"""The contract of a file store.

Files are immutable. The content of a file is either in the store itself or in a blob outside of the
store. Content in the store itself can only be read as a whole. For content in a blob, the store
holds a reference to the blob.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Protocol

from msgspec import Struct

from antiphon.wire.resources.files import File

from .records import exceeds

__all__ = [
    "NO_LIMITS",
    "BlobRef",
    "BlobStorage",
    "FileContents",
    "FileLimits",
    "FileQuery",
    "FileStore",
    "StoredContent",
]


class BlobRef(Struct, frozen=True, kw_only=True):
    """A reference to content outside of the store (a blob): its key in the blob storage, its
    SHA-256 in hex, and its size."""

    key: str
    sha256: str
    bytes: int


class BlobStorage(Protocol):
    """The blob storage in which a store can keep large responses: the methods of
    ``antiphon.blobs.base.Blobs`` that a store needs."""

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


#: The content of a file, or a reference to its blob.
FileContents = bytes | BlobRef


class StoredContent(Struct, frozen=True, kw_only=True):
    """A file, and where its content is stored. ``blob``: the reference to the blob with the
    content; None if the content is in the store itself. ``position``: a number that grows with each
    new file, so that ``FileStore.list_contents`` can continue after this file."""

    position: int
    tenant: str
    file: File
    blob: BlobRef | None


class FileQuery(Struct, frozen=True, kw_only=True):
    """A query for a page of a tenant's files.

    ``purpose``: only files with this purpose; None means all files. ``after``: the id of the last
    file of the previous page. ``now``: the current time in Unix seconds. Files that have expired by
    this time are left out.
    """

    purpose: str | None = None
    newest_first: bool = True
    after: str | None = None
    limit: int = 10_000
    now: int = 0


class FileLimits(Struct, frozen=True, kw_only=True):
    """Limits on the number of a tenant's files and on their total size. None means no limit."""

    max_files: int | None = None
    max_bytes: int | None = None

    def allow(self, files: int, total_bytes: int) -> bool:
        """Return whether a tenant may have so many files and bytes."""
        return not (exceeds(files, self.max_files) or exceeds(total_bytes, self.max_bytes))


NO_LIMITS = FileLimits()


class FileStore(Protocol):
    """The contract of a file store. Methods with a parameter ``tenant`` see only the files of this
    tenant. Files that are deleted, also by ``Store.sweep``, cannot be restored.

    Files of one tenant with the same SHA-256 share one blob. The transaction that deletes the last
    file of a blob marks the blob as unused. The caller of ``list_unused_blobs`` then deletes the
    blob, and calls ``forget_blobs`` to remove the mark.

    ``supports_blobs``: whether files can have contents in blobs. A store without support for blobs
    gets no ``BlobRef``, and inherits the methods for blobs, which do nothing.
    """

    supports_blobs: bool = False

    @abstractmethod
    async def put(
        self, tenant: str, file: File, content: FileContents, limits: FileLimits = NO_LIMITS
    ) -> bool:
        """Store a new file. Returns after the file is durable.

        Returns False and stores nothing if the tenant's files would exceed ``limits``. Concurrent
        calls cannot together exceed them. If ``content`` refers to a blob, but the tenant already
        has the same content in another blob, the file refers to that other blob. The blob of
        ``content`` is then marked as unused.
        """

    @abstractmethod
    async def get(self, tenant: str, file_id: str) -> File | None:
        """Return the file. Returns None if it is unknown."""

    @abstractmethod
    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        """Return the content of a file, or a reference to its content. Returns None if the file is
        unknown."""

    @abstractmethod
    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        """Return a page of files in the order of creation. Returns None if ``query.after`` is
        unknown."""

    @abstractmethod
    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a file and its content. Returns False if the file is unknown."""

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        """Move the content of a file from ``old`` to ``new``. ``old``: the blob that holds the
        content now; None if the store itself holds it. If both are blobs, the content moves for all
        files that share the blob. Returns False and changes nothing if the content is no longer at
        ``old``."""
        return False

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        """Return up to ``limit`` files of all tenants whose position is greater than ``after``, in
        the order of ``StoredContent.position``. If ``in_blobs`` is true, return only files whose
        content is in blobs. Otherwise return only files whose content is in the store itself."""
        return ()

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        """Return the keys of up to ``limit`` blobs that are marked as unused. No file and no
        response refers to these blobs any more."""
        return ()

    async def forget_blobs(self, keys: Collection[str]) -> None:
        """Remove the records that mark these blobs as unused. Call this after the blobs were
        deleted. ``keys``: the keys of the blobs."""
        return

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        """Return those ``keys`` whose blobs the store does not know. The store knows the blobs of
        files and responses, and the blobs that are marked as unused."""
        return frozenset()
