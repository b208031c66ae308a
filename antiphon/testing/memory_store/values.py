"""The in-memory values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.store.values import ValueStore

from .part import Part


class MemoryValues(Part, ValueStore):
    """Implements ``ValueStore`` with a dictionary."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(check)
        self._values: dict[tuple[str, str], bytes] = {}

    async def read(self, tenant: str, name: str) -> bytes | None:
        return self._values.get((tenant, name))

    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        key = (tenant, name)
        if self._values.get(key) != old:
            return False
        if new is None:
            self._values.pop(key, None)
        else:
            self._values[key] = new
        return True

    def delete_tenant(self, tenant: str) -> int:
        """Delete the values of a tenant. Return their number."""
        return drop_tenant(self._values, tenant)


def drop_tenant(rows: dict[tuple[str, str], Any], tenant: str) -> int:
    """Delete the rows of a tenant, with which their keys begin. Return their number."""
    keys = [key for key in rows if key[0] == tenant]
    for key in keys:
        del rows[key]
    return len(keys)
