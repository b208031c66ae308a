"""The in-memory key store, the reference implementation of the contract ``KeyStore``."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.store.keys import KeyRecord

__all__ = ["MemoryKeys"]


class MemoryKeys:
    """Implements ``KeyStore`` with a dictionary. ``check``: a function that the methods call first.
    It raises ``StoreError`` if the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._keys: dict[str, KeyRecord] = {}

    async def create(self, key: KeyRecord) -> bool:
        self._check()
        return self._keys.setdefault(key.name, key) is key

    async def list(self) -> tuple[KeyRecord, ...]:
        self._check()
        return tuple(self._keys[name] for name in sorted(self._keys))

    async def replace(self, key: KeyRecord) -> bool:
        self._check()
        if key.name not in self._keys:
            return False
        self._keys[key.name] = key
        return True

    async def delete(self, name: str) -> bool:
        self._check()
        return self._keys.pop(name, None) is not None
