"""Chains at hand: what came before a response does not change, so that a conversation that goes on
need not be read again from its beginning. It knows no model.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct

from antiphon.store.base import Store
from antiphon.store.records import StoredResponse

__all__ = ["ChainCache"]

_encode = msgspec.json.Encoder().encode

Chain = tuple[StoredResponse, ...]

#: Bytes of JSON kept in all.
_ROOM = 64 * 2**20


class _Kept(Struct, frozen=True):
    chain: Chain
    bytes: int


class ChainCache:
    """The chains that were continued lately, over a store. Whether a response may still be
    continued, the store is asked each time."""

    def __init__(self, store: Store, max_bytes: int = _ROOM) -> None:
        self._store = store
        self._room = max_bytes
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    async def get(self, tenant: str, response_id: str) -> Chain | None:
        """The response and all its ancestors, oldest first; None if it is unknown, deleted or
        expired."""
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            return None
        parent = stored.response.previous_response_id
        before = _Kept((), 0)
        if parent is not None:
            known = self._drop((tenant, parent))
            if known is None:
                chain = await self._store.load_chain(tenant, response_id)
                if chain is None:
                    return None
                known = _Kept(chain[:-1], sum(map(_size, chain[:-1])))
            before = known
        kept = _Kept((*before.chain, stored), before.bytes + _size(stored))
        if stored.response.status in ("completed", "incomplete"):
            self._keep((tenant, response_id), kept)
        return kept.chain

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        """In place of what it continues; the oldest give way."""
        self._drop(key)
        self._kept[key] = kept
        self._bytes += kept.bytes
        while self._bytes > self._room:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.bytes

    def _drop(self, key: tuple[str, str]) -> _Kept | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.bytes
        return kept


def _size(stored: StoredResponse) -> int:
    return len(_encode(stored))
