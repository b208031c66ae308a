"""The PostgreSQL file store: metadata in one table, contents in another."""

from __future__ import annotations

from antiphon.store.files import FileQuery
from antiphon.store.reservations import exceeds
from antiphon.store.row_mapping import file_of, file_row
from antiphon.wire.files import File

from .pool import ConnectionPool, index_key

__all__ = ["PostgresFiles"]


class PostgresFiles:
    """``FileStore`` over a connection pool."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def put(
        self,
        tenant: str,
        file: File,
        content: bytes,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> bool:
        async with self._pool.tenant_transaction("lock_files", tenant) as transaction:
            ((count, stored_bytes),) = await transaction.rows("file_totals", tenant)
            if exceeds(count + 1, max_files) or exceeds(stored_bytes + file.bytes, max_bytes):
                return False
            row_id = await transaction.value("put_file", *file_row(tenant, file))
            await transaction.rows("put_content", row_id, content)
            return True

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = await self._pool.decoded_rows(file_of, "file", tenant, index_key(file_id))
        return found[0] if found else None

    async def read(self, tenant: str, file_id: str) -> bytes | None:
        found = await self._pool.rows("content", tenant, index_key(file_id))
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
