"""Chains of responses that one client connection can continue although they are not stored. A chain
is a response together with the earlier responses that it continues."""

from __future__ import annotations

from msgspec import UnsetType
from msgspec.structs import replace

from antiphon.wire.steering import PendingSteering

from .chain_cache import Chain


class SessionChains:
    """The chains that one client connection can continue. A chain is a list of responses, oldest
    first, in which each response continues the one before it. The key of a chain is the id of its
    last response."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def add(self, chain: Chain) -> None:
        """Add a chain, so that its last response can be continued."""
        self._chains[chain[-1].response.id] = chain

    def remove(self, response_id: str) -> None:
        """Remove the chain that ends with this response. If the response is stored, it can still be
        continued."""
        self._chains.pop(response_id, None)

    def set_pending_steering(self, response_id: str, pending: PendingSteering | UnsetType) -> None:
        """Set the input with which the client has steered a response, and that waits for the next
        request. Does nothing if there is no chain that ends with this response."""
        if (chain := self._chains.get(response_id)) is not None:
            *earlier, last = chain
            response = replace(last.response, pending_steering=pending)
            self._chains[response_id] = (*earlier, replace(last, response=response))

    def get(self, response_id: str) -> Chain | None:
        """Return the chain that ends with this response. Returns None if the connection has no such
        chain."""
        return self._chains.get(response_id)
