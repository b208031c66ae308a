"""Values in SQLite."""

from __future__ import annotations

import sqlite3

from antiphon.store.values import ValueStore

from .database import Database


class SqliteValues(ValueStore):
    """Implements ``ValueStore`` with a table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, tenant: str, name: str) -> bytes | None:
        found = await self._database.rows("value", (tenant, name), lambda row: bytes(row[0]))
        return found[0] if found else None

    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        key = (tenant, name)

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(self._database.queries["value"], key).fetchone()
            if (None if row is None else row[0]) != old:
                return False
            if new is None:
                connection.execute(self._database.queries["drop_value"], key)
            else:
                connection.execute(self._database.queries["put_value"], (*key, new))
            return True

        frees_space = old is not None and len(new or b"") < len(old)  # also a list with less ids
        return await self._database.write(work, frees_space=frees_space)
