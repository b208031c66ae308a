"""Values in a table."""

from __future__ import annotations

from antiphon.store.values import ValueStore

from .executor import Executor, SqlTransaction


class SqlValues(ValueStore):
    """Implements ``ValueStore`` with a table."""

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def read(self, tenant: str, name: str) -> bytes | None:
        rows = await self._executor.rows("value", tenant, name)
        return bytes(rows[0][0]) if rows else None

    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        key = (tenant, name)
        if old is None and new is None:
            return await self.read(*key) is None
        if old is None:
            return await self._executor.change("create_value", *key, new) > 0

        async def work(transaction: SqlTransaction) -> bool:
            # Compared here, because two encryptions of one value differ.
            if await transaction.value("locked_value", *key) != old:
                return False
            if new is None:
                await transaction.change("drop_value", *key)
            else:
                await transaction.change("replace_value", *key, new)
            return True

        frees_space = len(new or b"") < len(old)  # also a list with less ids
        return await self._executor.write(work, frees_space=frees_space)
