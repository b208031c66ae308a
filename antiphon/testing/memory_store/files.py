"""The in-memory file store, the reference implementation of the contract ``FileStore``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice

from msgspec import UNSET, Struct

from antiphon.store.files import (
    NO_LIMITS,
    BlobRef,
    FileContents,
    FileLimits,
    FileQuery,
    FileStore,
    StoredContent,
)
from antiphon.wire.resources.files import File

from .part import Part


class _FileRow(Struct):
    position: int
    file: File
    content: FileContents


class _BlobRow(Struct):
    """A blob and the number of files that share it."""

    blob: BlobRef
    files: int = 0


class MemoryFiles(Part, FileStore):
    """Implements ``FileStore`` with a dictionary. ``on_deleted``: called with the tenant and the id
    of each file that ``delete`` or ``expire`` deletes."""

    supports_blobs = True

    def __init__(
        self, check: Callable[[], None], *, on_deleted: Callable[[str, str], None]
    ) -> None:
        super().__init__(check)
        self._on_deleted = on_deleted
        self._files: dict[tuple[str, str], _FileRow] = {}
        #: Blobs by tenant and SHA-256.
        self._blobs: dict[tuple[str, str], _BlobRow] = {}
        self._unused: dict[str, None] = {}
        self._last_position = 0

    async def put(
        self, tenant: str, file: File, content: FileContents, limits: FileLimits = NO_LIMITS
    ) -> bool:
        count, stored_bytes = self.totals(tenant)
        if not limits.allow(count + 1, stored_bytes + file.bytes):
            return False
        self._last_position += 1
        self._files[(tenant, file.id)] = _FileRow(
            self._last_position, file, self._add_content(tenant, content)
        )
        return True

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = self._files.get((tenant, file_id))
        return found.file if found is not None else None

    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        found = self._files.get((tenant, file_id))
        return found.content if found is not None else None

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        files = self._files_of(tenant)
        if query.newest_first:
            files.reverse()
        start = 0
        if query.after is not None:
            if (tenant, query.after) not in self._files:
                return None
            start = next(n for n, file in enumerate(files, 1) if file.id == query.after)
        matching = (file for file in files[start:] if _matches(file, query))
        return tuple(islice(matching, query.limit))

    async def delete(self, tenant: str, file_id: str) -> bool:
        self._on_deleted(tenant, file_id)
        return self._delete(tenant, file_id)

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        row = self._files.get((tenant, file_id))
        if row is None or old != (row.content if isinstance(row.content, BlobRef) else None):
            return False
        if isinstance(old, BlobRef) and isinstance(new, BlobRef):
            self._blobs[tenant, old.sha256].blob = new
            self._unused[old.key] = None
            for (owner, _), each in self._files.items():
                if owner == tenant and each.content == old:
                    each.content = new
            return True
        previous, row.content = row.content, self._add_content(tenant, new)
        self._drop_content(tenant, previous)
        return True

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        rows = (
            StoredContent(position=row.position, tenant=tenant, file=row.file, blob=blob)
            for (tenant, _), row in self._files.items()
            for blob in (row.content if isinstance(row.content, BlobRef) else None,)
            if row.position > after and in_blobs is (blob is not None)
        )
        return tuple(islice(rows, limit))

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        return tuple(islice(self._unused, limit))

    async def forget_blobs(self, keys: Collection[str]) -> None:
        for key in keys:
            self._unused.pop(key, None)

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        return frozenset(keys) - {row.blob.key for row in self._blobs.values()} - set(self._unused)

    def expire(self, now: int) -> None:
        """Delete the files that have expired by ``now``, in Unix seconds."""
        for key, row in list(self._files.items()):
            if _is_expired(row.file, now):
                self._delete(*key)
                self._on_deleted(*key)

    def delete_tenant(self, tenant: str) -> int:
        """Delete the files of a tenant and of its pending uploads. Return the number of deleted
        files.

        The files of pending uploads are stored under other tenant names. These consist of the name
        of the tenant, U+001F and more text.
        """
        keys = [key for key in self._files if key[0].partition("\x1f")[0] == tenant]
        for key in keys:
            self._delete(*key)
        return len(keys)

    def totals(self, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's files and their bytes."""
        sizes = [file.bytes for file in self._files_of(tenant)]
        return len(sizes), sum(sizes)

    def _files_of(self, tenant: str) -> list[File]:
        return [row.file for (owner, _), row in self._files.items() if owner == tenant]

    def _delete(self, tenant: str, file_id: str) -> bool:
        row = self._files.pop((tenant, file_id), None)
        if row is not None:
            self._drop_content(tenant, row.content)
        return row is not None

    def _add_content(self, tenant: str, content: FileContents) -> FileContents:
        """Record that one more file has the content that ``content`` refers to. Return the
        reference that the file has to store: if the tenant already has a blob with equal content, a
        reference to this older blob, and otherwise ``content``."""
        if not isinstance(content, BlobRef):
            return content
        row = self._blobs.setdefault((tenant, content.sha256), _BlobRow(content))
        row.files += 1
        if row.blob.key != content.key:
            self._unused[content.key] = None
        return row.blob

    def _drop_content(self, tenant: str, content: FileContents) -> None:
        if not isinstance(content, BlobRef):
            return
        row = self._blobs[tenant, content.sha256]
        row.files -= 1
        if not row.files:
            del self._blobs[tenant, content.sha256]
            self._unused[row.blob.key] = None


def _matches(file: File, query: FileQuery) -> bool:
    return query.purpose in (None, file.purpose) and not _is_expired(file, query.now)


def _is_expired(file: File, now: int) -> bool:
    return file.expires_at is not UNSET and file.expires_at <= now
