"""Chains of responses that one client connection can continue although they are not stored. A chain
is a response together with the earlier responses that it continues."""

from __future__ import annotations

from msgspec import UnsetType
from msgspec.structs import replace

from antiphon.support.fair_limiter import FairLimiter
from antiphon.wire.steering import PendingSteering

from .chain_cache import Chain, chain_bytes

#: The chains of a connection need no memory of the limiter up to this size.
_SMALL_BYTES = 2**18


class SessionChains:
    """The chains that one client connection can continue. A chain is a list of responses, oldest
    first, in which each response continues the one before it. The key of a chain is the id of its
    last response.

    ``memory``: bytes for such chains, which the connections of all tenants share.
    """

    def __init__(self, memory: FairLimiter, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._chains: dict[str, Chain] = {}
        #: The sizes of the chains as JSON.
        self._sizes: dict[str, int] = {}
        self._held_bytes = 0

    def add(self, chain: Chain, replaced: str | None = None) -> None:
        """Add a chain, so that its last response can be continued, and remove the chain that ends
        with the response ``replaced``. If there is too little memory, remove the oldest chains, and
        at last this one."""
        *earlier, last = chain
        before = self._sizes.get(earlier[-1].response.id) if earlier else 0
        added = chain if before is None else (last,)
        size = (before or 0) + chain_bytes(added, chain[: -len(added)])
        self._chains[last.response.id], self._sizes[last.response.id] = chain, size
        self._remove(replaced)
        while not self._hold_memory():
            self._remove(next(iter(self._chains)))

    def remove(self, response_id: str) -> None:
        """Remove the chain that ends with this response. If the response is stored, it can still be
        continued."""
        self._remove(response_id)
        self._hold_memory()

    def _remove(self, response_id: str | None) -> None:
        if response_id in self._chains:
            del self._chains[response_id], self._sizes[response_id]

    def clear(self) -> None:
        """Remove all chains."""
        self._chains, self._sizes = {}, {}
        self._hold_memory()

    def _hold_memory(self) -> bool:
        """Hold as much memory as the chains need. Returns whether there is enough."""
        size = sum(self._sizes.values())
        more = (size if size > _SMALL_BYTES else 0) - self._held_bytes
        if more > 0 and not self._memory.try_acquire(self._tenant, more):
            return False
        if more < 0:
            self._memory.release(self._tenant, -more)
        self._held_bytes += more
        return True

    def set_pending_steering(self, response_id: str, pending: PendingSteering | UnsetType) -> bool:
        """Set the input with which the client has steered a response, and that waits for the next
        request. Returns whether there is a chain that ends with this response."""
        if (chain := self._chains.get(response_id)) is not None:
            *earlier, last = chain
            response = replace(last.response, pending_steering=pending)
            self._chains[response_id] = (*earlier, replace(last, response=response))
        return chain is not None

    def get(self, response_id: str) -> Chain | None:
        """Return the chain that ends with this response. Returns None if the connection has no such
        chain."""
        return self._chains.get(response_id)
