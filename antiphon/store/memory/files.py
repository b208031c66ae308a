"""The in-memory file store, the reference of the contract."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from msgspec import UNSET

from antiphon.store.files import FileQuery
from antiphon.store.reservations import exceeds
from antiphon.wire.files import File

__all__ = ["MemoryFiles"]


class MemoryFiles:
    """``FileStore`` over a dictionary.

    ``check`` raises if the store is closed. ``on_deleted`` is called with tenant and id of each
    deleted file.
    """

    def __init__(
        self, check: Callable[[], None], *, on_deleted: Callable[[str, str], None]
    ) -> None:
        self._check = check
        self._on_deleted = on_deleted
        self._files: dict[tuple[str, str], tuple[File, bytes]] = {}

    async def put(
        self,
        tenant: str,
        file: File,
        content: bytes,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> bool:
        self._check()
        count, stored_bytes = self.totals(tenant)
        if exceeds(count + 1, max_files) or exceeds(stored_bytes + file.bytes, max_bytes):
            return False
        self._files[(tenant, file.id)] = (file, content)
        return True

    async def get(self, tenant: str, file_id: str) -> File | None:
        self._check()
        found = self._files.get((tenant, file_id))
        return found[0] if found is not None else None

    async def read(self, tenant: str, file_id: str) -> bytes | None:
        self._check()
        found = self._files.get((tenant, file_id))
        return found[1] if found is not None else None

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        self._check()
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
        self._check()
        self._on_deleted(tenant, file_id)
        return self._files.pop((tenant, file_id), None) is not None

    def expire(self, now: int) -> None:
        """Delete the files that expired by ``now``."""
        for key, (file, _) in list(self._files.items()):
            if _is_expired(file, now):
                del self._files[key]
                self._on_deleted(*key)

    def delete_tenant(self, tenant: str) -> int:
        """Delete the files of a tenant, and those of its pending uploads: of tenants whose names
        begin with this one and U+001F. Return their number."""
        keys = [key for key in self._files if key[0].partition("\x1f")[0] == tenant]
        for key in keys:
            del self._files[key]
        return len(keys)

    def totals(self, tenant: str) -> tuple[int, int]:
        """Return the number of a tenant's files and their bytes."""
        sizes = [file.bytes for file in self._files_of(tenant)]
        return len(sizes), sum(sizes)

    def _files_of(self, tenant: str) -> list[File]:
        return [file for (owner, _), (file, _) in self._files.items() if owner == tenant]


def _matches(file: File, query: FileQuery) -> bool:
    return query.purpose in (None, file.purpose) and not _is_expired(file, query.now)


def _is_expired(file: File, now: int) -> bool:
    return file.expires_at is not UNSET and file.expires_at <= now
