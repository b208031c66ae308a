"""Operations on the files that clients have uploaded.

Files of other tenants and expired files are reported as not found.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.blobs.base import Blobs
from antiphon.errors import InvalidRequest, NotFound, TooLarge
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas, check_size
from antiphon.limits.refusals import quota_exceeded
from antiphon.store.base import Store
from antiphon.store.files import FileLimits, FileQuery
from antiphon.stream.writer import Ids
from antiphon.wire.cursors import page_of
from antiphon.wire.pagination import Page
from antiphon.wire.resources.files import File, FileExpiresAfter

from .contents import Chunks, ContentStore, StoredFile

__all__ = ["MAX_WHOLE_BYTES", "FileContent", "FileQuery", "FileUpload", "Files"]

#: Largest file whose content is loaded as a whole: for a model, a container or a vector store.
MAX_WHOLE_BYTES = 256 * 2**20

#: Seconds after which files with purpose ``batch`` expire by default: 30 days, as in OpenAI's API.
_BATCH_S = 2_592_000


class FileUpload(Struct, frozen=True, kw_only=True):
    """A file that a client uploads. ``chunks`` yields its content. ``bytes``: the size of the
    content."""

    filename: str
    purpose: str
    bytes: int
    chunks: Chunks
    expires_after: FileExpiresAfter | None = None


class FileContent(Struct, frozen=True):
    """A file with its whole content."""

    file: File
    content: bytes


class Files:
    """Operations on files. Methods that take a file id raise ``NotFound`` for an unknown id, except
    ``find``.

    ``quotas``: the maximum number of a tenant's files, and their maximum total size. ``blobs``:
    external storage for contents; if it is None, the contents are in the store. ``signed_url_s``:
    number of seconds for which a signed download URL is valid. 0: downloads are not redirected to
    such URLs, but the server sends the content.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        ids: Ids,
        quotas: TenantQuotas = NO_QUOTAS,
        blobs: Blobs | None = None,
        signed_url_s: int = 0,
    ) -> None:
        self._files = store.files
        self.contents = ContentStore(store.files, blobs)
        self._signed_url_s = signed_url_s
        self._clock = clock
        self._ids = ids
        self._quotas = quotas

    async def create(self, tenant: str, upload: FileUpload) -> File:
        """Store a file. Raises ``TooLarge`` if the file alone is larger than the tenant's quota.
        Raises ``QuotaExceeded`` if all files of the tenant together would exceed the quota."""
        limits = self._quotas.for_tenant(tenant)
        check_size(upload.bytes, limits.max_files_bytes, param="file")
        now = int(self._clock())
        wait = upload.expires_after
        seconds = wait.seconds if wait is not None else None
        if seconds is None and upload.purpose == "batch":
            seconds = _BATCH_S
        file = File(
            id=self._ids("file").replace("_", "-", 1),  # OpenAI's form, which clients look for
            bytes=upload.bytes,
            created_at=now,
            filename=upload.filename,
            purpose=upload.purpose,
            expires_at=UNSET if seconds is None else now + seconds,
        )
        allowed = FileLimits(max_files=limits.max_files, max_bytes=limits.max_files_bytes)
        if not await self.contents.put(tenant, file, upload.chunks, allowed):
            raise quota_exceeded(
                "files",
                param="file",
                max_files=limits.max_files,
                max_files_bytes=limits.max_files_bytes,
            )
        return file

    async def retrieve(self, tenant: str, file_id: str) -> File:
        """Return the metadata of a file."""
        found = await self.find(tenant, file_id)
        if found is None:
            raise _not_found(file_id)
        return found

    async def open(self, tenant: str, file_id: str) -> StoredFile:
        """Return a ``StoredFile``, which holds the metadata of a file and can read its content."""
        file = await self.retrieve(tenant, file_id)
        found = await self.contents.open(tenant, file)
        if found is None:  # deleted in the meantime
            raise _not_found(file_id)
        return found

    async def read(self, tenant: str, file_id: str) -> FileContent:
        """Return a file with its whole content. Raises ``TooLarge`` if the content is larger than
        ``MAX_WHOLE_BYTES``."""
        found = await self.open(tenant, file_id)
        if found.file.bytes > MAX_WHOLE_BYTES:
            raise TooLarge(
                f"The file {file_id} is larger than what can be loaded as a whole"
                f" ({MAX_WHOLE_BYTES} bytes).",
                code="file_too_large",
            )
        return FileContent(found.file, b"".join([chunk async for chunk in found.read()]))

    async def download_url(self, stored: StoredFile) -> str | None:
        """Return a signed URL to which a download may be redirected. Returns None if signed URLs
        are turned off or unavailable."""
        return await stored.sign(self._signed_url_s) if self._signed_url_s else None

    async def find(self, tenant: str, file_id: str) -> File | None:
        """Return the metadata of a file. Returns None if the file does not exist or has
        expired."""
        found = await self._files.get(tenant, file_id)
        if found is None or (found.expires_at is not UNSET and found.expires_at <= self._clock()):
            return None
        return found

    async def list(self, tenant: str, query: FileQuery) -> Page[File]:
        """Return a page of files. Raises ``InvalidRequest`` if the cursor is not the id of a
        file."""
        page_query = replace(query, limit=query.limit + 1, now=int(self._clock()))
        found = await self._files.list_page(tenant, page_query)
        if found is None:
            raise InvalidRequest(f"No such File object: {query.after}", param="after")
        return page_of(found[: query.limit], has_more=len(found) > query.limit)

    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file and its content."""
        await self.retrieve(tenant, file_id)
        if not await self._files.delete(tenant, file_id):
            raise _not_found(file_id)


def _not_found(file_id: str) -> NotFound:
    return NotFound(f"No such File object: {file_id}", param="id")
