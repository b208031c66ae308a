"""The file store in tables. Metadata is in one table; contents, or references to contents, are in
other tables."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.store.files import (
    NO_LIMITS,
    BlobRef,
    FileContents,
    FileLimits,
    FileQuery,
    FileStore,
    StoredContent,
)
from antiphon.store.sql.row_mapping import blob_of, file_of, file_row, stored_content_of
from antiphon.wire.resources.files import File

from .executor import Executor, SqlTransaction, first, index_key


class SqlFiles(FileStore):
    """Implements ``FileStore`` with tables."""

    supports_blobs = True

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def put(
        self, tenant: str, file: File, content: FileContents, limits: FileLimits = NO_LIMITS
    ) -> bool:
        async def work(transaction: SqlTransaction) -> bool:
            ((count, stored_bytes),) = await transaction.rows("file_totals", tenant)
            if not limits.allow(count + 1, stored_bytes + file.bytes):
                return False
            row = await transaction.insert("put_file", *file_row(tenant, file))
            await _put_content(transaction, tenant, row, content)
            return True

        return await self._executor.write(work, alone=("files", tenant))

    async def get(self, tenant: str, file_id: str) -> File | None:
        key = (tenant, index_key(file_id))
        return first(await self._executor.decoded_rows(file_of, "file", *key))

    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        found = await self._executor.rows("content", tenant, index_key(file_id))
        if not found:
            return None
        content, *blob = found[0]
        return blob_of(blob) if content is None else bytes(content)

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        after = None
        if query.after is not None:
            found = await self._executor.rows("file_row", tenant, index_key(query.after))
            if not found:
                return None
            after = found[0][0]
        name = "files_newest" if query.newest_first else "files_oldest"
        arguments = (tenant, query.purpose, query.now, after, query.limit)
        return tuple(await self._executor.decoded_rows(file_of, name, *arguments))

    async def delete(self, tenant: str, file_id: str) -> bool:
        key = (tenant, index_key(file_id))
        return await self._executor.change("drop_file", *key, frees_space=True) > 0

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        async def work(transaction: SqlTransaction) -> bool:
            row = await transaction.value("lock_file", tenant, index_key(file_id))
            if row is None:
                return False
            if isinstance(old, BlobRef) and isinstance(new, BlobRef):
                is_moved = await transaction.change("move_blob", row, old.key, new.key) > 0
                if is_moved:
                    await transaction.change("put_unused_blob", old.key)
                return is_moved
            name, key = ("drop_content", ()) if old is None else ("drop_file_blob", (old.key,))
            if not await transaction.change(name, row, *key):
                return False
            await _put_content(transaction, tenant, row, new)
            return True

        return await self._executor.write(work)

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        name = "files_in_blobs" if in_blobs else "files_in_store"
        return tuple(await self._executor.decoded_rows(stored_content_of, name, after, limit))

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._executor.rows("unused_blobs", limit))

    async def forget_blobs(self, keys: Collection[str]) -> None:
        await self._executor.change("drop_unused_blobs", list(keys), frees_space=True)

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        return frozenset(row[0] for row in await self._executor.rows("unknown_blobs", list(keys)))


async def _put_content(
    transaction: SqlTransaction, tenant: str, row: int, content: FileContents
) -> None:
    if not isinstance(content, BlobRef):
        await transaction.change("put_content", row, content)
        return
    key = (tenant, content.sha256)
    await transaction.change("put_blob", *key, content.bytes, content.key)
    ((blob, used),) = await transaction.rows("blob", *key)
    await transaction.change("put_file_blob", row, blob)
    if used != content.key:
        await transaction.change("put_unused_blob", content.key)
