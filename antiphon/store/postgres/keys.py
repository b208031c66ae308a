"""The PostgreSQL key store."""

from __future__ import annotations

from antiphon.store.common.row_mapping import encode, key_of
from antiphon.store.keys import KeyRecord

from .pool import ConnectionPool

__all__ = ["PostgresKeys"]


class PostgresKeys:
    """Implements ``KeyStore`` with tables in PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def create(self, key: KeyRecord) -> bool:
        return bool(await self._pool.rows("create_key", key.name, encode(key)))

    async def list(self) -> tuple[KeyRecord, ...]:
        return tuple(await self._pool.decoded_rows(key_of, "keys"))

    async def replace(self, key: KeyRecord) -> bool:
        return bool(await self._pool.rows("replace_key", encode(key), key.name))

    async def delete(self, name: str) -> bool:
        return bool(await self._pool.rows("delete_key", name))
