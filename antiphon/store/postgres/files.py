"""The PostgreSQL file store. Metadata is in one table; contents, or references to contents, are in
other tables."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.store.common.row_mapping import blob_of, file_of, file_row, stored_content_of
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

from .pool import ConnectionPool, Transaction, index_key


class PostgresFiles(FileStore):
    """Implements ``FileStore`` with tables in PostgreSQL."""

    supports_blobs = True

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def put(
        self, tenant: str, file: File, content: FileContents, limits: FileLimits = NO_LIMITS
    ) -> bool:
        async with self._pool.tenant_transaction("lock_files", tenant) as transaction:
            ((count, stored_bytes),) = await transaction.rows("file_totals", tenant)
            if not limits.allow(count + 1, stored_bytes + file.bytes):
                return False
            row_id = await transaction.value("put_file", *file_row(tenant, file))
            await _put_content(transaction, tenant, row_id, content)
            return True

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = await self._pool.decoded_rows(file_of, "file", tenant, index_key(file_id))
        return found[0] if found else None

    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        key = (tenant, index_key(file_id))
        if blobs := await self._pool.rows("file_blob", *key):
            return blob_of(blobs[0])
        found = await self._pool.rows("content", *key)
        return bytes(found[0][0]) if found else None

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        after = None
        if query.after is not None:
            found = await self._pool.rows("file_row", tenant, index_key(query.after))
            if not found:
                return None
            after = found[0][0]
        name = "files_newest" if query.newest_first else "files_oldest"
        return tuple(
            await self._pool.decoded_rows(
                file_of, name, tenant, query.purpose, query.now, after, query.limit
            )
        )

    async def delete(self, tenant: str, file_id: str) -> bool:
        return bool(await self._pool.rows("drop_file", tenant, index_key(file_id)))

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        async with self._pool.transaction() as transaction:
            found = await transaction.rows("lock_file", tenant, index_key(file_id))
            if not found:
                return False
            if isinstance(old, BlobRef) and isinstance(new, BlobRef):
                return await _move_blob(transaction, found[0][0], old.key, new.key)
            name, key = ("drop_content", ()) if old is None else ("drop_file_blob", (old.key,))
            if not await transaction.rows(name, found[0][0], *key):
                return False
            await _put_content(transaction, tenant, found[0][0], new)
            return True

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        name = "files_in_blobs" if in_blobs else "files_in_store"
        return tuple(await self._pool.decoded_rows(stored_content_of, name, after, limit))

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._pool.rows("unused_blobs", limit))

    async def forget_blobs(self, keys: Collection[str]) -> None:
        await self._pool.rows("drop_unused_blobs", list(keys))

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        return frozenset(row[0] for row in await self._pool.rows("unknown_blobs", list(keys)))


async def _put_content(
    transaction: Transaction, tenant: str, row_id: int, content: FileContents
) -> None:
    if not isinstance(content, BlobRef):
        await transaction.rows("put_content", row_id, content)
        return
    columns = (tenant, content.sha256, content.bytes, content.key)
    ((blob, key),) = await transaction.rows("put_blob", *columns)
    await transaction.rows("put_file_blob", row_id, blob)
    if key != content.key:
        await transaction.rows("put_unused_blob", content.key)


async def _move_blob(transaction: Transaction, row_id: int, old: str, new: str) -> bool:
    if not await transaction.rows("move_blob", row_id, old, new):
        return False
    await transaction.rows("put_unused_blob", old)
    return True
