"""What a connection remembers of its own: responses that can be continued though nothing of them is
stored. It knows no connections.
"""

from __future__ import annotations

from antiphon.store.records import StoredResponse

__all__ = ["SessionChains"]

Chain = tuple[StoredResponse, ...]


class SessionChains:
    """Chains of responses, oldest first, by the id of their last one."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def add(self, chain: Chain) -> None:
        """The last of these can be continued."""
        self._chains[chain[-1].response.id] = chain

    def remove(self, response_id: str) -> None:
        """It can be no more, unless it is stored."""
        self._chains.pop(response_id, None)

    def get(self, response_id: str) -> Chain | None:
        """The response and all its ancestors, if it is remembered."""
        return self._chains.get(response_id)
