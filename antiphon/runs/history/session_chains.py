"""Responses that a connection can continue although they are not stored."""

from __future__ import annotations

from antiphon.store.records import StoredResponse

__all__ = ["SessionChains"]

Chain = tuple[StoredResponse, ...]


class SessionChains:
    """The chains of responses of one connection. The key is the id of the last response of a chain.
    Responses are ordered oldest first."""

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
        """Return the response and all its ancestors. Returns None if the connection does not have
        the response."""
        return self._chains.get(response_id)
