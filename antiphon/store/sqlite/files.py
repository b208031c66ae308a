"""The SQLite file store. Metadata is in one table; contents, or references to contents, are in
other tables."""

from __future__ import annotations

import json
import sqlite3
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

from .database import Database


class SqliteFiles(FileStore):
    """Implements ``FileStore`` with tables of an SQLite database."""

    supports_blobs = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def put(
        self, tenant: str, file: File, content: FileContents, limits: FileLimits = NO_LIMITS
    ) -> bool:
        row = file_row(tenant, file)

        def work(connection: sqlite3.Connection) -> bool:
            totals = connection.execute(self._queries["file_totals"], (tenant,)).fetchone()
            if not limits.allow(totals[0] + 1, totals[1] + file.bytes):
                return False
            row_id = connection.execute(self._queries["put_file"], row).lastrowid or 0
            self._put_content(connection, tenant, row_id, content)
            return True

        return await self._database.write(work)

    async def get(self, tenant: str, file_id: str) -> File | None:
        found = await self._database.rows("file", (tenant, file_id), file_of)
        return found[0] if found else None

    async def read(self, tenant: str, file_id: str) -> FileContents | None:
        def work(connection: sqlite3.Connection) -> FileContents | None:
            blob = connection.execute(self._queries["file_blob"], (tenant, file_id)).fetchone()
            if blob is not None:
                return blob_of(blob)
            row = connection.execute(self._queries["content"], (tenant, file_id)).fetchone()
            return None if row is None else bytes(row[0])

        return await self._database.read(work)

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
            query.limit,
        )
        return tuple(await self._database.rows(name, arguments, file_of))

    async def delete(self, tenant: str, file_id: str) -> bool:
        return await self._database.delete("drop_file", (tenant, file_id)) > 0

    async def replace_content(
        self, tenant: str, file_id: str, old: BlobRef | None, new: FileContents
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(self._queries["file_row"], (tenant, file_id)).fetchone()
            if row is None:
                return False
            if isinstance(old, BlobRef) and isinstance(new, BlobRef):
                return self._move_blob(connection, row[0], old.key, new.key)
            if not self._drop_content(connection, row[0], old):
                return False
            self._put_content(connection, tenant, row[0], new)
            return True

        return await self._database.write(work)

    async def list_contents(
        self, *, after: int, limit: int, in_blobs: bool
    ) -> tuple[StoredContent, ...]:
        name = "files_in_blobs" if in_blobs else "files_in_store"
        return tuple(await self._database.rows(name, (after, limit), stored_content_of))

    async def list_unused_blobs(self, limit: int) -> tuple[str, ...]:
        return tuple(await self._database.rows("unused_blobs", (limit,), lambda row: str(row[0])))

    async def forget_blobs(self, keys: Collection[str]) -> None:
        query, rows = self._queries["drop_unused_blob"], [(key,) for key in keys]
        await self._database.write(
            lambda connection: connection.executemany(query, rows), frees_space=True
        )

    async def find_unknown_blobs(self, keys: Collection[str]) -> frozenset[str]:
        listed = (json.dumps(list(keys)),)
        return frozenset(
            await self._database.rows("unknown_blobs", listed, lambda row: str(row[0]))
        )

    def _put_content(
        self, connection: sqlite3.Connection, tenant: str, row_id: int, content: FileContents
    ) -> None:
        if not isinstance(content, BlobRef):
            connection.execute(self._queries["put_content"], (row_id, content))
            return
        columns = (tenant, content.sha256, content.bytes, content.key)
        connection.execute(self._queries["put_blob"], columns)
        blob, key = connection.execute(self._queries["blob"], columns[:2]).fetchone()
        connection.execute(self._queries["put_file_blob"], (row_id, blob))
        if key != content.key:
            connection.execute(self._queries["put_unused_blob"], (content.key,))

    def _drop_content(
        self, connection: sqlite3.Connection, row_id: int, old: BlobRef | None
    ) -> bool:
        name, key = ("drop_content", ()) if old is None else ("drop_file_blob", (old.key,))
        return connection.execute(self._queries[name], (row_id, *key)).rowcount > 0

    def _move_blob(self, connection: sqlite3.Connection, row_id: int, old: str, new: str) -> bool:
        if not connection.execute(self._queries["move_blob"], (row_id, old, new)).rowcount:
            return False
        connection.execute(self._queries["put_unused_blob"], (old,))
        return True
