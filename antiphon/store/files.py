"""The contract of a file store.

Files are immutable. Their content is read as a whole, so upload limits bound it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.files import File

__all__ = ["FileQuery", "FileStore"]


class FileQuery(Struct, frozen=True, kw_only=True):
    """A page of a tenant's files.

    ``purpose``: only files with this purpose; None: all. ``after``: the file before the page.
    ``now``: unix seconds; files that expired by then are left out.
    """

    purpose: str | None = None
    newest_first: bool = True
    after: str | None = None
    limit: int = 10_000
    now: int = 0


class FileStore(Protocol):
    """The contract. All methods are per tenant: the id of another tenant is unknown. Deletion, also
    by ``Store.sweep``, is final.
    """

    async def put(
        self,
        tenant: str,
        file: File,
        content: bytes,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> bool:
        """Store a new file. Return when it is durable.

        False, and nothing is stored, if the tenant would have more than ``max_files`` files, or
        more than ``max_bytes`` bytes in all of them. That is exact under concurrency.
        """

    async def get(self, tenant: str, file_id: str) -> File | None:
        """Return the file, or None."""

    async def read(self, tenant: str, file_id: str) -> bytes | None:
        """Return the content of a file, or None."""

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        """Return a page of files in the order of creation; None if ``after`` is unknown."""

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Delete a file and its content. False if it is unknown."""
