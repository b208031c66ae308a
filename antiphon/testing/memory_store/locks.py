"""Heartbeats and conversation locks of the memory store."""

from __future__ import annotations

import time
from collections.abc import Callable

from antiphon.store.common.claims import free_runs
from antiphon.store.records import ClaimQuery, ConversationLock


class OwnerHeartbeats:
    """Records the time of the last heartbeat of each owner, to find out which owners are still
    alive. An owner is a server that works on responses."""

    def __init__(self) -> None:
        self._last_heartbeats: dict[str, float] = {}

    def record(self, owner: str) -> None:
        """Record a heartbeat of an owner."""
        self._last_heartbeats[owner] = time.monotonic()

    def living_owners(self, lease_s: float) -> frozenset[str]:
        """Return the owners whose last heartbeat is less than ``lease_s`` seconds old.

        The heartbeats are kept in the memory of this process, so after a restart of this process,
        each owner counts as dead until it sends its next heartbeat.
        """
        since = time.monotonic() - lease_s
        return frozenset(owner for owner, time_s in self._last_heartbeats.items() if time_s > since)

    def free_runs(self, query: ClaimQuery) -> Callable[[str, str | None], bool]:
        """Return a function that tells whether the owner of ``query`` may claim a run; see
        ``free_runs``."""
        return free_runs(query.owner, self.living_owners(query.lease_s), query.held)


class ConversationLocks:
    """The locks of conversations. A lock has a holder and an owner. The holder is the response that
    has locked the conversation. The owner is the server that works on this response."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        self._owners = owners
        #: The holder and the owner of each lock, by tenant and conversation.
        self.held: dict[tuple[str, str], tuple[str, str]] = {}
        #: Tenant and id of each response that has an unended run, or whose run is being created.
        self._running: set[tuple[str, str]] = set()

    def is_held(self, tenant: str, holder: str, lock: ConversationLock) -> bool:
        """Return whether the response ``holder`` has this lock."""
        return self.held.get((tenant, lock.conversation)) == (holder, lock.owner)

    def acquire(self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float) -> bool:
        """Lock a conversation for the response ``holder``.

        Returns False in two cases: another response holds the lock and the owner of the lock is
        alive, or another response holds the lock and its run has not ended. An unended run keeps
        its lock, because the next owner of the run will continue the run.
        """
        key = (tenant, lock.conversation)
        current, current_owner = self.held.get(key, (holder, lock.owner))
        if current != holder and (
            self.has_run(tenant, current) or current_owner in self._owners.living_owners(lease_s)
        ):
            return False
        self.held[key] = (holder, lock.owner)
        self._owners.record(lock.owner)
        return True

    def release(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release the lock that the response ``holder`` has on a conversation. Do nothing if the
        response does not have this lock, or if its run has not ended."""
        if self.has_run(tenant, holder):
            return
        lock = self.held.get((tenant, conversation_id))
        if lock is not None and lock[0] == holder:
            del self.held[tenant, conversation_id]

    def has_run(self, tenant: str, holder: str) -> bool:
        """Return whether the response ``holder`` has an unended run, or whether its run is being
        created."""
        return (tenant, holder) in self._running

    def add_run(self, tenant: str, holder: str) -> None:
        """Record that the response ``holder`` has a run. From now on, ``release`` does nothing for
        this response, because the response must keep its lock until the run ends."""
        self._running.add((tenant, holder))

    def transfer(self, tenant: str, holder: str, owner: str) -> None:
        """Transfer the locks of a run to the owner that has claimed the run."""
        for key in self._keys_held_by(tenant, holder):
            self.held[key] = (holder, owner)

    def remove_holder(self, tenant: str, holder: str) -> None:
        """Release the locks of a response that has ended or was deleted."""
        self._running.discard((tenant, holder))
        for key in self._keys_held_by(tenant, holder):
            del self.held[key]

    def remove_tenant(self, tenant: str) -> None:
        """Release all locks of a tenant, because the tenant's runs were deleted."""
        self._running = {key for key in self._running if key[0] != tenant}
        self.held = {key: lock for key, lock in self.held.items() if key[0] != tenant}

    def release_owner(self, owner: str) -> None:
        """Release the locks of an owner that stops, except for locks that belong to runs that have
        not ended. The lock of such a run passes to the next owner of the run."""
        for (tenant, conversation_id), (holder, lock_owner) in list(self.held.items()):
            if lock_owner == owner and not self.has_run(tenant, holder):
                del self.held[tenant, conversation_id]

    def _keys_held_by(self, tenant: str, holder: str) -> list[tuple[str, str]]:
        return [key for key, lock in self.held.items() if (key[0], lock[0]) == (tenant, holder)]
