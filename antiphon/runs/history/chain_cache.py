"""A cache of response chains. What precedes a response never changes, so a long conversation need
not be read from its beginning for each turn.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from antiphon.store.base import Store
from antiphon.store.records import StoredResponse

from .aging_cache import AgingCache, CacheEntry

__all__ = ["ChainCache", "chain_bytes"]

_encode = msgspec.json.Encoder().encode

Chain = tuple[StoredResponse, ...]

#: Limit of the cache, in bytes of JSON: the objects take two to three times as much memory.
_MAX_BYTES = 32 * 2**20
#: Seconds after which a chain that nobody has continued is dropped: it may have been deleted.
_MAX_AGE_S = 600.0


class ChainCache:
    """Recently continued chains, over a store. Each time, the store is asked whether the last
    response still exists. An ancestor that was deleted while its continuation ran may be in the
    chain although the store has it no more: deleted ancestors are part of a chain.
    """

    def __init__(
        self, store: Store, *, max_bytes: int = _MAX_BYTES, max_age_s: float = _MAX_AGE_S
    ) -> None:
        self._store = store
        self._cache: AgingCache[Chain] = AgingCache(max_bytes=max_bytes, max_age_s=max_age_s)

    async def get(self, tenant: str, response_id: str) -> Chain | None:
        """Return the response and all its ancestors, oldest first; None if it is unknown, deleted
        or expired."""
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            return None
        parent = stored.response.previous_response_id
        ancestors: CacheEntry[Chain] | None = CacheEntry((), 0)
        if parent is not None:
            ancestors = self._cache.remove((tenant, parent))
        if ancestors is None:
            chain = await self._store.load_chain(tenant, response_id)
            if chain is None:
                return None
            ancestors = CacheEntry(chain[:-1], chain_bytes(chain[:-1]))
        chain = (*ancestors.value, stored)
        if stored.response.status in ("completed", "incomplete"):
            size = ancestors.bytes + chain_bytes((stored,))
            self._cache.add((tenant, response_id), chain, size)
        return chain


def chain_bytes(chain: Iterable[StoredResponse]) -> int:
    """Return the size of responses as JSON."""
    return sum(len(_encode(stored)) for stored in chain)
