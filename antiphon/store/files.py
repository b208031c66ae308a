"""The contract of a file store.

Files are immutable. Their content is in the store, where it is read as a whole, or outside of it:
then the store has a reference to it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from antiphon.wire.resources.files import File

__all__ = ["BlobRef", "FileContents", "FileQuery", "FileStore", "StoredContent"]


class BlobRef(Struct, frozen=True, kw_only=True):
    """Content outside of the store: its key there, its SHA-256 in hex, and its size."""

    key: str
    sha256: str
    bytes: int


#: The content of a file, or where it is.
FileContents = bytes | BlobRef


class StoredContent(Struct, frozen=True, kw_only=True):
    """Where the content of a file is stored. ``blob``: its reference; None: it is in the store
    itself. ``position``: a number that grows with each file."""

    position: int
    tenant: str
    file: File
    blob: BlobRef | None


class FileQuery(Struct, frozen=True, kw_only=True):
    """A page of a tenant's files.

    ``purpose``: only files with this purpose; None: all. ``after``: the last file before the page.
    ``now``: unix seconds; files that have expired by then are left out.
    """

    purpose: str | None = None
    newest_first: bool = True
    after: str | None = None
    limit: int = 10_000
    now: int = 0


class FileStore(Protocol):
    """The contract of a file store. Methods with a tenant know only its files. Deletion, also by
    ``Store.sweep``, is final.

    Files of one tenant with the same SHA-256 share one blob. The transaction that deletes the last
    file of a blob marks the blob as unused. Callers then delete the blob and remove the mark
    (``forget_blobs``).
    """

    async def put(
        self,
        tenant: str,
        file: File,
        content: FileContents,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> bool:
        """Store a new file. Return when it is durable.

        False, and nothing is stored, if the tenant would have more than ``max_files`` files, or
        more than ``max_bytes`` bytes in all of them. This is exact under concurrency. If the tenant
        already has this content in another blob, the file refers to that blob, and ``content``
        becomes unused.
        """

    async def get(self, tenant: str, file_id: str) -> File | None:
        """Return the file, or None."""

    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        """Return the content of a file, or where it is; None for an unknown file."""

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        """Return a page of files in the order of creation; None if ``after`` is unknown."""

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a file and its content. False if it is unknown."""

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        """Replace the place of a file's content, which is ``old`` now; None stands for the store
        itself. From one blob to another, it changes for all files that share the blob. False, and
        nothing is changed, if the content is no longer at ``old``."""

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        """Return files of all tenants in the order of their positions, beginning after the position
        ``after``: those whose content is in blobs, or those whose content is in the store itself.
        """

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        """Return keys of blobs that no file has any more."""

    async def forget_blobs(self, keys: Collection[str]) -> None:
        """Remove the records of unused blobs after their content has been deleted."""

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        """Return those keys that no file has and that are not unused either."""
