"""Files: what clients keep here to be named in requests. It knows neither HTTP nor what is in them.

Whoever is not the tenant of a file finds none, and so does everybody once it has expired.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound
from antiphon.pagination import page_of
from antiphon.store.base import Store
from antiphon.store.files import FileQuery
from antiphon.stream.writer import Ids
from antiphon.wire.files import ExpiresAfter, File
from antiphon.wire.pagination import Page

__all__ = ["FileQuery", "Files", "Kept", "Upload"]

#: Files for batches are kept for 30 days unless something else is asked for: OpenAI's rule.
_BATCH_S = 2_592_000


class Upload(Struct, frozen=True, kw_only=True):
    """A file as a client brings it."""

    filename: str
    purpose: str
    content: bytes
    expires_after: ExpiresAfter | None = None


class Kept(Struct, frozen=True):
    """A file with its content."""

    file: File
    content: bytes


class Files:
    """What can be asked about files; unless told otherwise, methods raise ``NotFound`` for unknown
    ids. ``most``: bytes of all files of a tenant; None = no limit."""

    def __init__(
        self, store: Store, *, clock: Callable[[], float], ids: Ids, most: int | None = None
    ) -> None:
        self._files = store.files
        self._clock = clock
        self._ids = ids
        self._most = most

    async def create(self, tenant: str, upload: Upload) -> File:
        """Keep it. Raises ``InvalidRequest`` where the tenant has no room for it."""
        now = int(self._clock())
        wait = upload.expires_after
        seconds = wait.seconds if wait is not None else None
        if seconds is None and upload.purpose == "batch":
            seconds = _BATCH_S
        file = File(
            id=self._ids("file").replace("_", "-", 1),  # as OpenAI writes it: clients look for it
            bytes=len(upload.content),
            created_at=now,
            filename=upload.filename,
            purpose=upload.purpose,
            expires_at=UNSET if seconds is None else now + seconds,
        )
        if not await self._files.put(tenant, file, upload.content, max_bytes=self._most):
            raise InvalidRequest(
                f"There is no room for this file: all files together may hold {self._most} bytes."
                " Delete some and try again.",
                param="file",
                code="storage_limit_exceeded",
            )
        return file

    async def retrieve(self, tenant: str, file_id: str) -> File:
        """What is known of it."""
        found = await self.find(tenant, file_id)
        if found is None:
            raise _unknown(file_id)
        return found

    async def content(self, tenant: str, file_id: str) -> Kept:
        """The file with its content."""
        file = await self.retrieve(tenant, file_id)
        content = await self._files.read(tenant, file_id)
        if content is None:  # deleted in this moment
            raise _unknown(file_id)
        return Kept(file, content)

    async def find(self, tenant: str, file_id: str) -> File | None:
        """What is known of it, or None."""
        found = await self._files.get(tenant, file_id)
        if found is None or (found.expires_at is not UNSET and found.expires_at <= self._clock()):
            return None
        return found

    async def list(self, tenant: str, listing: FileQuery) -> Page[File]:
        """A page. Raises ``InvalidRequest`` for a cursor that is no file."""
        wanted = replace(listing, limit=listing.limit + 1, now=int(self._clock()))
        found = await self._files.list_page(tenant, wanted)
        if found is None:
            raise InvalidRequest(f"No such File object: {listing.after}", param="after")
        return page_of(found[: listing.limit], has_more=len(found) > listing.limit)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Forget it and its content."""
        await self.retrieve(tenant, file_id)
        if not await self._files.delete(tenant, file_id):
            raise _unknown(file_id)


def _unknown(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id}", param="id")
