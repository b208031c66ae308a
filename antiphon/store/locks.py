"""Who lives, and who holds which conversation, where one process has the store: neither need
outlive it.
"""

from __future__ import annotations

import time
from collections.abc import Collection

__all__ = ["ConversationLocks", "OwnerHeartbeats"]


class OwnerHeartbeats:
    """When each was last heard of."""

    def __init__(self) -> None:
        self._last_heartbeats: dict[str, float] = {}

    def record(self, owner: str) -> None:
        """It lives."""
        self._last_heartbeats[owner] = time.monotonic()

    def living_owners(self, lease_s: float) -> frozenset[str]:
        """Those last heard of less than ``lease_s`` ago. Who was never heard of here has died with
        the process it lived in."""
        since = time.monotonic() - lease_s
        return frozenset(owner for owner, heard in self._last_heartbeats.items() if heard > since)


class ConversationLocks:
    """Which response has which conversation, and for which owner."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        self._owners = owners
        #: Holder and owner, by tenant and conversation.
        self._locks: dict[tuple[str, str], tuple[str, str]] = {}

    def holder(self, tenant: str, conversation_id: str) -> str:
        """Which response has it; empty if none."""
        return self._locks.get((tenant, conversation_id), ("", ""))[0]

    def acquire(
        self,
        tenant: str,
        conversation_id: str,
        holder: str,
        owner: str,
        *,
        lease_s: float,
        unclaimed: str | None,
    ) -> bool:
        """False: another response has it, whose owner is alive, or which is ``waiting`` for one."""
        had, by = self._locks.get((tenant, conversation_id), (holder, owner))
        if had != holder and (had == unclaimed or by in self._owners.living_owners(lease_s)):
            return False
        self._locks[tenant, conversation_id] = (holder, owner)
        self._owners.record(owner)
        return True

    def release(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Give it back, if it is this one's."""
        held = self._locks.get((tenant, conversation_id))
        if held is not None and held[0] == holder:
            del self._locks[tenant, conversation_id]

    def transfer(self, tenant: str, holder: str, owner: str) -> None:
        """The run was claimed."""
        for key in self._keys_held_by(tenant, holder):
            self._locks[key] = (holder, owner)

    def remove_holder(self, tenant: str, holder: str) -> None:
        """The response has ended, or is gone."""
        for key in self._keys_held_by(tenant, holder):
            del self._locks[key]

    def release_owner(self, owner: str, running: Collection[tuple[str, str]]) -> None:
        """The owner stops; what its runs hold waits for whoever goes on with them."""
        for (tenant, conversation_id), (holder, by) in list(self._locks.items()):
            if by == owner and (tenant, holder) not in running:
                del self._locks[tenant, conversation_id]

    def _keys_held_by(self, tenant: str, holder: str) -> list[tuple[str, str]]:
        return [key for key, held in self._locks.items() if (key[0], held[0]) == (tenant, holder)]
