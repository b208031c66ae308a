"""A cache of response chains. What precedes a response never changes, so a long conversation need
not be read from its beginning for each turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec
from msgspec import Struct

from antiphon.store.base import Store
from antiphon.store.records import StoredResponse

__all__ = ["ChainCache"]

_encode = msgspec.json.Encoder().encode

Chain = tuple[StoredResponse, ...]

#: Limit of the cache, in bytes of JSON: the objects take two to three times as much memory.
_MAX_BYTES = 32 * 2**20
#: Seconds after which a chain that nobody has continued is dropped: it may have been deleted.
_MAX_AGE_S = 600.0


class _Entry(Struct, frozen=True):
    """``added_at``: in the loop's time."""

    chain: Chain
    bytes: int
    added_at: float = 0.0


class ChainCache:
    """Recently continued chains, over a store. Each time, the store is asked whether the last
    response still exists. An ancestor that was deleted while its continuation ran may be in the
    chain although the store has it no more: deleted ancestors are part of a chain.
    """

    def __init__(
        self, store: Store, *, max_bytes: int = _MAX_BYTES, max_age_s: float = _MAX_AGE_S
    ) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._bytes = 0

    async def get(self, tenant: str, response_id: str) -> Chain | None:
        """Return the response and all its ancestors, oldest first; None if it is unknown, deleted
        or expired."""
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            return None
        parent = stored.response.previous_response_id
        ancestors: _Entry | None = _Entry((), 0)
        if parent is not None:
            ancestors = self._remove((tenant, parent))
        if ancestors is None:
            chain = await self._store.load_chain(tenant, response_id)
            if chain is None:
                return None
            ancestors = _Entry(chain[:-1], sum(map(_size, chain[:-1])))
        now = asyncio.get_running_loop().time()
        entry = _Entry((*ancestors.chain, stored), ancestors.bytes + _size(stored), now)
        if stored.response.status in ("completed", "incomplete"):
            self._add((tenant, response_id), entry)
        return entry.chain

    def _add(self, key: tuple[str, str], entry: _Entry) -> None:
        """Add an entry. The oldest ones are removed beyond the limits."""
        self._remove(key)
        self._entries[key] = entry
        self._bytes += entry.bytes
        oldest_time = entry.added_at - self._max_age_s
        while self._entries:
            oldest_key, oldest = next(iter(self._entries.items()))
            if self._bytes <= self._max_bytes and oldest.added_at >= oldest_time:
                return
            self._remove(oldest_key)

    def _remove(self, key: tuple[str, str]) -> _Entry | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.bytes
        return entry


def _size(stored: StoredResponse) -> int:
    return len(_encode(stored))
