"""Responses that a connection can continue although they are not stored."""

from __future__ import annotations

from antiphon.store.records import StoredResponse

__all__ = ["SessionChains"]

Chain = tuple[StoredResponse, ...]


class SessionChains:
    """The chains of responses of one connection, oldest first, by the id of their last response."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def add(self, chain: Chain) -> None:
        """Let the last response of the chain be continued."""
        self._chains[chain[-1].response.id] = chain

    def remove(self, response_id: str) -> None:
        """Forget a response. It can still be continued if it is stored."""
        self._chains.pop(response_id, None)

    def get(self, response_id: str) -> Chain | None:
        """Return the response and all its ancestors, None if the connection does not have it."""
        return self._chains.get(response_id)
