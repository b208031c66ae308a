"""A cache of response chains. A chain consists of a response and its ancestors, all earlier
responses that it continues. Ancestors never change, so a long conversation does not have to be read
from its beginning for each turn."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.inference.conversation import PromptTokens
from antiphon.inference.encoded_items import EncodedItems
from antiphon.store.base import Store
from antiphon.store.records import StoredResponse
from antiphon.support.aging_cache import AgingCache
from antiphon.wire.items import Item

_encode = msgspec.json.Encoder().encode

#: Responses that continue each other, oldest first.
Chain = tuple[StoredResponse, ...]

#: Limit of the cache, in bytes of JSON: of the responses, and of their items as backends send them.
#: The objects of the responses take two to three times as much memory.
_MAX_BYTES = 64 * 2**20
#: Seconds after which a chain that was not continued is dropped, because it may be deleted.
_MAX_AGE_S = 600.0
#: The token ids of a chain are cached from this number on. Fewer ids are rebuilt in less than a
#: tenth of a millisecond.
_MIN_IDS = 4096
#: Bytes that a token id counts against the limit. In memory, it takes 40 bytes.
_ID_BYTES = 16


class LoadedChain(Struct, frozen=True):
    """A chain of responses, oldest first. Each response continues the response before it.
    ``tokens``: the token ids of the last prompt and its output; None if some of them are unknown.
    ``bytes``: size of the responses as JSON. ``encoded``: the encoded forms of their items."""

    responses: Chain = ()
    tokens: PromptTokens | None = None
    bytes: int = 0
    encoded: EncodedItems | None = None

    @property
    def pending_input(self) -> tuple[Item, ...]:
        """The input with which clients have steered the last response, and that waits for the next
        request."""
        last = self.responses[-1].response if self.responses else None
        pending = UNSET if last is None else last.pending_steering
        return () if pending is UNSET else pending.input


class ChainCache:
    """Cache of response chains, in front of a store. A chain consists of a response and all earlier
    responses that it continues. A chain is dropped if no new response continues it for some time.

    Each lookup asks the store whether the last response of the chain still exists. The earlier
    responses of the chain may have been deleted. This is intended, because a deleted response
    remains part of the chains that continue it.
    """

    def __init__(
        self, store: Store, *, max_bytes: int = _MAX_BYTES, max_age_s: float = _MAX_AGE_S
    ) -> None:
        self._store = store
        self._cache: AgingCache[LoadedChain] = AgingCache(max_bytes=max_bytes, max_age_s=max_age_s)

    def __len__(self) -> int:
        return len(self._cache)

    @property
    def size_bytes(self) -> int:
        """The size of all cached chains, with their token ids."""
        return self._cache.size_bytes

    async def get(self, tenant: str, response_id: str) -> LoadedChain | None:
        """Return the chain of responses that ends with this response. Returns None if the response
        is unknown, deleted or expired."""
        stored = await self._store.load(tenant, response_id)
        if stored is None:
            return None
        parent = stored.response.previous_response_id
        if parent is None:
            chain = _load_chain((stored,))
        elif (entry := self._cache.remove((tenant, parent))) is not None:
            chain = _extend_chain(entry.value, stored)
        else:
            responses = await self._store.load_chain(tenant, response_id)
            if responses is None:
                return None
            chain = _load_chain(responses)
        if stored.response.status in ("completed", "incomplete"):
            self._add((tenant, response_id), chain)
        return chain

    def _add(self, key: tuple[str, str], chain: LoadedChain) -> None:
        """Add a chain of responses to the cache. The token ids of the chain are cached only if
        there are at least ``_MIN_IDS`` of them, because fewer ids are rebuilt quickly."""
        ids = () if chain.tokens is None else chain.tokens.ids
        if len(ids) >= _MIN_IDS:
            self._cache.add(key, chain, 2 * chain.bytes + _ID_BYTES * len(ids))
        else:
            self._cache.add(key, replace(chain, tokens=None), 2 * chain.bytes)


def chain_items(chain: Iterable[StoredResponse]) -> tuple[Item, ...]:
    """Return all input and output items of a chain, oldest first."""
    return tuple(item for stored in chain for item in (*stored.input, *stored.response.output))


def chain_bytes(chain: Iterable[StoredResponse]) -> int:
    """Return the size of responses as JSON, in bytes."""
    return sum(len(_encode(stored)) for stored in chain)


def _load_chain(responses: Chain) -> LoadedChain:
    return LoadedChain(
        responses,
        stored_tokens(responses),
        chain_bytes(responses),
        EncodedItems(chain_items(responses)),
    )


def _extend_chain(chain: LoadedChain, stored: StoredResponse) -> LoadedChain:
    """Return the chain with one more response at its end. The returned chain contains the same
    ``int`` objects for its token ids as ``chain``. A comparison of the ids of both chains is then
    cheap, because Python compares identical objects fast."""
    responses = (*chain.responses, stored)
    before, added = chain.tokens, stored.tokens
    if before is None or added is None or before.fingerprint != added.fingerprint:
        tokens = stored_tokens(responses)
    else:
        ids = before.ids[: added.base] + tuple(array("I", added.ids))
        tokens = PromptTokens(ids=ids, fingerprint=added.fingerprint)
    if chain.encoded is not None:
        chain.encoded.extend(chain_items((stored,)))
    return LoadedChain(responses, tokens, chain.bytes + chain_bytes((stored,)), chain.encoded)


def stored_tokens(chain: Chain) -> PromptTokens | None:
    """Return the token ids of the chain's last prompt and its output. They are rebuilt from the ids
    that each response of the chain added. Returns None if some of the ids are unknown."""
    ids = array("I")
    fingerprint: str | None = None
    for stored in chain:
        tokens = stored.tokens
        if tokens is None:
            fingerprint = None
            continue
        if tokens.fingerprint != fingerprint and tokens.base:
            return None
        del ids[tokens.base :]
        ids.frombytes(tokens.ids)
        fingerprint = tokens.fingerprint
    return (
        PromptTokens(ids=tuple(ids), fingerprint=fingerprint) if fingerprint is not None else None
    )
