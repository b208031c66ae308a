"""The SQLite file store: metadata in one table, contents in another."""

from __future__ import annotations

import sqlite3

from antiphon.store.files import FileQuery
from antiphon.store.reservations import exceeds
from antiphon.store.row_mapping import file_of, file_row
from antiphon.wire.files import File

from .database import Database

__all__ = ["SqliteFiles"]


class SqliteFiles:
    """``FileStore`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def put(
        self,
        tenant: str,
        file: File,
        content: bytes,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
    ) -> bool:
        row = file_row(tenant, file)

        def work(connection: sqlite3.Connection) -> bool:
            totals = connection.execute(self._queries["file_totals"], (tenant,)).fetchone()
            if exceeds(totals[0] + 1, max_files) or exceeds(totals[1] + file.bytes, max_bytes):
                return False
            row_id = connection.execute(self._queries["put_file"], row).lastrowid
            connection.execute(self._queries["put_content"], (row_id, content))
            return True

        return await self._database.write(work)

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = await self._database.rows("file", (tenant, file_id), file_of)
        return found[0] if found else None

    async def read(self, tenant: str, file_id: str) -> bytes | None:
        found = await self._database.rows("content", (tenant, file_id), lambda row: bytes(row[0]))
        return found[0] if found else None

    async def list_page(self, tenant: str, query: FileQuery) -> tuple[File, ...] | None:
        after = None
        if query.after is not None:
            key = (tenant, query.after)
            found = await self._database.rows("file_row", key, lambda row: int(row[0]))
            if not found:
                return None
            after = found[0]
        name = "files_newest" if query.newest_first else "files_oldest"
        arguments = (
            tenant,
            query.purpose,
            query.purpose,
            query.now,
            after,
            after,
            query.limit,
        )
        return tuple(await self._database.rows(name, arguments, file_of))

    async def delete(self, tenant: str, file_id: str) -> bool:
        query, key = self._queries["drop_file"], (tenant, file_id)
        return await self._database.write(
            lambda connection: connection.execute(query, key).rowcount > 0
        )
