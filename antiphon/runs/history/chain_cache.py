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
from antiphon.wire.response import encodable, without_shared

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
    """Cache of response chains, in front of a store. A chain is dropped if no new response
    continues it for some time.

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
        key = (tenant, response_id)
        entry = self._cache.get(key)
        # Once a foreground response is stored, only its metadata can change.
        is_final = entry is not None and not entry.value.responses[-1].response.background
        if entry is not None and is_final and await self._store.has_response(*key):
            found = entry.value
            return replace(found, tokens=found.tokens or stored_tokens(found.responses))
        stored = await self._store.load(*key)
        if stored is None:
            return None
        if (chain := self.add_stored(tenant, stored)) is not None:
            return chain
        is_first = stored.response.previous_response_id is None
        responses = (stored,) if is_first else await self._store.load_chain(*key)
        return None if responses is None else self._add(tenant, LoadedChain(), responses)

    def add_stored(self, tenant: str, stored: StoredResponse) -> LoadedChain | None:
        """Add a response, as the store contains it, to the cached chain that it continues. Return
        the longer chain, or None if the cache does not contain the chain."""
        entry = self._cache.remove((tenant, stored.response.previous_response_id or ""))
        return None if entry is None else self._add(tenant, entry.value, (stored,))

    def _add(self, tenant: str, before: LoadedChain, added: Chain) -> LoadedChain:
        """Return a chain with more responses at its end, and add it to the cache if it can be
        continued."""
        chain = _extend_chain(before, added)
        response, ids = added[-1].response, () if chain.tokens is None else chain.tokens.ids
        if response.status in ("completed", "incomplete"):
            kept, size = chain, 2 * chain.bytes + _ID_BYTES * len(ids)
            if len(ids) < _MIN_IDS:
                kept, size = replace(chain, tokens=None), 2 * chain.bytes
            self._cache.add((tenant, response.id), kept, size)
        return chain


def chain_items(chain: Iterable[StoredResponse]) -> tuple[Item, ...]:
    """Return all input and output items of a chain, oldest first."""
    return tuple(item for stored in chain for item in (*stored.input, *stored.response.output))


def chain_bytes(chain: Iterable[StoredResponse], before: Chain = ()) -> int:
    """Return the size of responses as JSON, in bytes. Tools and instructions that several of them
    share, one after another, are counted once, because they are the same objects. ``before``: the
    responses that the first one continues."""
    size = 0
    tools = before[-1].response.tools if before else None
    for stored in chain:
        response = stored.response
        form = without_shared if response.tools is tools else encodable
        size += len(_encode(replace(stored, response=form(response))))
        tools = response.tools
    return size


def _extend_chain(chain: LoadedChain, added: Chain) -> LoadedChain:
    """Return the chain with more responses at its end: one, or any number if the chain is empty.
    The returned chain contains the same ``int`` objects for its token ids as ``chain``. A
    comparison of the ids of both chains is then cheap, because Python compares identical objects
    fast."""
    responses = (*chain.responses, *added)
    before, last = chain.tokens, added[-1].tokens
    if before is None or last is None or before.fingerprint != last.fingerprint:
        tokens = stored_tokens(responses)
    else:
        ids = before.ids[: last.base] + tuple(array("I", last.ids))
        tokens = PromptTokens(ids=ids, fingerprint=last.fingerprint)
    encoded = chain.encoded or EncodedItems()
    encoded.extend(chain_items(added))
    return LoadedChain(
        responses, tokens, chain.bytes + chain_bytes(added, chain.responses), encoded
    )


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
