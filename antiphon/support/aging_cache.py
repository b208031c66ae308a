"""A cache that limits the total size of its values in bytes, and their age."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Generic, TypeVar

from msgspec import Struct

_T = TypeVar("_T")


class CacheEntry(Struct, Generic[_T], frozen=True):
    """A value of a cache, and its size in bytes. ``added_at``: when it was added, by the event
    loop's clock."""

    value: _T
    bytes: int
    added_at: float = 0.0


class AgingCache(Generic[_T]):
    """Cache of values by tenant and name, which returns no values older than ``max_age_s`` seconds.
    When a value is added, such values are removed. Then the oldest values are removed until all
    values together have at most ``max_bytes``."""

    def __init__(self, *, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._entries: OrderedDict[tuple[str, str], CacheEntry[_T]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """The sizes of all values together."""
        return self._bytes

    def get(self, key: tuple[str, str]) -> CacheEntry[_T] | None:
        """Return the entry of a key. Returns None if the key has no entry, or if the entry is too
        old."""
        entry = self._entries.get(key)
        if entry is not None and self._is_too_old(entry, asyncio.get_running_loop().time()):
            self.remove(key)
            return None
        return entry

    def add(self, key: tuple[str, str], value: _T, size: int) -> None:
        """Add a value of ``size`` bytes. It becomes the newest value of the cache."""
        self.remove(key)
        now = asyncio.get_running_loop().time()
        self._entries[key] = CacheEntry(value, size, now)
        self._bytes += size
        while self._entries:
            oldest_key, oldest = next(iter(self._entries.items()))
            if self._bytes <= self._max_bytes and not self._is_too_old(oldest, now):
                return
            self.remove(oldest_key)

    def remove(self, key: tuple[str, str]) -> CacheEntry[_T] | None:
        """Remove the entry of a key and return it. Returns None if the key has no entry."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.bytes
        return entry

    def _is_too_old(self, entry: CacheEntry[_T], now: float) -> bool:
        return entry.added_at < now - self._max_age_s
