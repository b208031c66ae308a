"""The SQLite key store."""

from __future__ import annotations

from typing import Any

from antiphon.store.common.row_mapping import encode, key_of
from antiphon.store.keys import KeyRecord

from .database import Database

__all__ = ["SqliteKeys"]


class SqliteKeys:
    """Implements ``KeyStore`` with tables of an SQLite database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, key: KeyRecord) -> bool:
        return await self._changes("create_key", key.name, encode(key))

    async def list(self) -> tuple[KeyRecord, ...]:
        return tuple(await self._database.rows("keys", (), key_of))

    async def replace(self, key: KeyRecord) -> bool:
        return await self._changes("replace_key", encode(key), key.name)

    async def delete(self, name: str) -> bool:
        return await self._changes("delete_key", name)

    async def _changes(self, name: str, *arguments: Any) -> bool:
        query = self._database.queries[name]
        return await self._database.write(
            lambda connection: connection.execute(query, arguments).rowcount > 0
        )
