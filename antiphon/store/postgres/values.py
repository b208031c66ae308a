"""Values in PostgreSQL."""

from __future__ import annotations

from antiphon.store.values import ValueStore

from .pool import ConnectionPool


class PostgresValues(ValueStore):
    """Implements ``ValueStore`` with a table."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def read(self, tenant: str, name: str) -> bytes | None:
        rows = await self._pool.rows("value", tenant, name)
        return bytes(rows[0][0]) if rows else None

    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        if old is None and new is None:
            return await self.read(tenant, name) is None
        if old is None:
            return bool(await self._pool.rows("create_value", tenant, name, new))
        async with self._pool.transaction() as transaction:
            # Compared here, because two encryptions of one value differ.
            if await transaction.value("locked_value", tenant, name) != old:
                return False
            if new is None:
                await transaction.rows("drop_value", tenant, name)
            else:
                await transaction.rows("replace_value", tenant, name, new)
        return True
