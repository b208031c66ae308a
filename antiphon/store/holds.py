"""Holds on conversations, where one process has the store: they need not outlive it."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["Holds"]


class Holds:
    """Which response has which conversation, and for which owner."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[str, str]] = {}

    def hold(self, tenant: str, conversation_id: str, holder: str, owner: str) -> bool:
        """False: another response has it."""
        held = self._held.get((tenant, conversation_id))
        if held is not None and held[0] != holder:
            return False
        self._held[tenant, conversation_id] = (holder, owner)
        return True

    def let_go(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Give it back, if it is this one's."""
        held = self._held.get((tenant, conversation_id))
        if held is not None and held[0] == holder:
            del self._held[tenant, conversation_id]

    def forget(self, holder: str) -> None:
        """The response has ended."""
        self._held = {key: held for key, held in self._held.items() if held[0] != holder}

    def release(self, owner: str, running: Collection[str]) -> None:
        """The owner stops; what its runs hold waits for whoever goes on with them."""
        self._held = {
            key: (holder, by)
            for key, (holder, by) in self._held.items()
            if by != owner or holder in running
        }
