"""The contract of kept files: what clients upload, and what later is made for them.

A file never changes. Its content is read whole: what is bigger than memory bears is not taken in.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.files import File

__all__ = ["FileQuery", "FileStore"]


class FileQuery(Struct, frozen=True, kw_only=True):
    """Which files of a tenant: those of a ``purpose`` (None: of all), the oldest first or the
    newest, at most ``limit`` behind the file ``after``. Expired at ``now`` (unix seconds) is
    gone."""

    purpose: str | None = None
    newest_first: bool = True
    after: str | None = None
    limit: int = 10_000
    now: int = 0


class FileStore(Protocol):
    """All methods are per tenant: a foreign id is an unknown id. A file is gone for good once it is
    deleted or ``Store.sweep`` finds its time has come."""

    async def put(
        self, tenant: str, file: File, content: bytes, *, max_bytes: int | None = None
    ) -> bool:
        """Keep a new file. False, and nothing is kept, if all files of the tenant together would be
        more than ``most`` bytes. Returns when it is durable."""

    async def get(self, tenant: str, file_id: str) -> File | None:
        """The file, or None."""

    async def read(self, tenant: str, file_id: str) -> bytes | None:
        """Its content, or None."""

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        """A page in the order they were made; None if ``after`` is unknown."""

    async def delete(self, tenant: str, file_id: str) -> bool:
        """Forget it and its content. False if it is unknown."""
