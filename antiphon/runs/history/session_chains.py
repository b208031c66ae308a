"""Chains of responses that one client connection can continue although they are not stored. A chain
is a response together with the earlier responses that it continues."""

from __future__ import annotations

from .chain_cache import Chain

__all__ = ["SessionChains"]


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

    def get(self, response_id: str) -> Chain | None:
        """Return the chain that ends with this response. Returns None if the connection has no such
        chain."""
        return self._chains.get(response_id)
