"""Files in PostgreSQL: what they are in one table, what is in them in another."""

from __future__ import annotations

from antiphon.store.files import Listing
from antiphon.store.row_mapping import file_of, file_row
from antiphon.wire.files import File

from .pool import ConnectionPool, Transaction, key

__all__ = ["PostgresFiles"]


class PostgresFiles:
    """``FileStore`` over a cluster."""

    def __init__(self, cluster: ConnectionPool) -> None:
        self._cluster = cluster

    async def put(
        self, tenant: str, file: File, content: bytes, *, most: int | None = None
    ) -> bool:
        async with self._cluster.transaction() as inside:
            await inside.rows("filing", tenant)
            held = await inside.value("file_bytes", tenant)
            if most is not None and held + file.bytes > most:
                return False
            place = await inside.value("put_file", *file_row(tenant, file))
            await inside.rows("put_content", place, content)
            return True

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = await self._cluster.shaped(file_of, "file", tenant, key(file_id))
        return found[0] if found else None

    async def content(self, tenant: str, file_id: str) -> bytes | None:
        found = await self._cluster.rows("content", tenant, key(file_id))
        return bytes(found[0][0]) if found else None

    async def page(self, tenant: str, listing: Listing) -> tuple[File, ...] | None:
        after = None
        if listing.after is not None:
            found = await self._cluster.rows("file_row", tenant, key(listing.after))
            if not found:
                return None
            after = found[0][0]
        query = "files_newest" if listing.newest_first else "files_oldest"
        return tuple(
            await self._cluster.shaped(
                file_of, query, tenant, listing.purpose, listing.now, after, listing.limit
            )
        )

    async def delete(self, tenant: str, file_id: str) -> bool:
        return bool(await self._cluster.rows("drop_file", tenant, key(file_id)))

    async def expire(self, inside: Transaction, now: int) -> None:
        """Forget what was to be kept until now, within a transaction."""
        await inside.rows("expire_files", now)
