"""Heartbeats and conversation locks of a store that only one process uses. They are kept in
memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

__all__ = ["ConversationLocks", "OwnerHeartbeats", "free_runs"]


class OwnerHeartbeats:
    """The time of the last heartbeat of each owner. An owner is a server that works on
    responses."""

    def __init__(self) -> None:
        self._last_heartbeats: dict[str, float] = {}

    def record(self, owner: str) -> None:
        """Record a heartbeat of an owner."""
        self._last_heartbeats[owner] = time.monotonic()

    def living_owners(self, lease_s: float) -> frozenset[str]:
        """Return the owners whose last heartbeat is less than ``lease_s`` seconds old.

        The heartbeats are lost when the process ends. So the owners that an earlier process used
        for its runs count as dead.
        """
        since = time.monotonic() - lease_s
        return frozenset(owner for owner, time_s in self._last_heartbeats.items() if time_s > since)

    def free_runs(
        self, owner: str, lease_s: float, held: Collection[str] | None
    ) -> Callable[[str, str | None], bool]:
        """Return a function that tells whether ``owner`` may claim a run. Its arguments are the id
        and the current owner of the run. An owner is alive if its last heartbeat is less than
        ``lease_s`` seconds old. ``held``: as in ``RunStore.claim``."""
        return free_runs(owner, self.living_owners(lease_s), held)


def free_runs(
    owner: str, living_owners: Collection[str], held: Collection[str] | None
) -> Callable[[str, str | None], bool]:
    """Return a function that tells whether ``owner`` may claim a run. Its arguments are the id and
    the current owner of the run. ``held``: as in ``RunStore.claim``."""
    alive = {owner, *living_owners}

    def is_free(response_id: str, run_owner: str | None) -> bool:
        is_forgotten = run_owner == owner and held is not None and response_id not in held
        return is_forgotten or run_owner not in alive

    return is_free


class ConversationLocks:
    """The locks of conversations. A lock has a holder and an owner. The holder is the response that
    has locked the conversation. The owner is the server that works on this response."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        self._owners = owners
        #: The holder and the owner of each lock, by tenant and conversation.
        self._locks: dict[tuple[str, str], tuple[str, str]] = {}
        #: Tenant and id of each response that has an unended run, or whose run is being created.
        self._running: set[tuple[str, str]] = set()

    def is_held(self, tenant: str, conversation_id: str, holder: str, owner: str) -> bool:
        """Return whether the lock of a conversation has this holder and this owner."""
        return self._locks.get((tenant, conversation_id)) == (holder, owner)

    def acquire(
        self,
        tenant: str,
        conversation_id: str,
        holder: str,
        owner: str,
        *,
        lease_s: float,
    ) -> bool:
        """Lock a conversation for the response ``holder``.

        Returns False in two cases: another response holds the lock and the owner of the lock is
        alive, or another response holds the lock and its run has not ended. An unended run keeps
        its lock, because the next owner of the run will continue the run.
        """
        current, current_owner = self._locks.get((tenant, conversation_id), (holder, owner))
        if current != holder and (
            self.has_run(tenant, current) or current_owner in self._owners.living_owners(lease_s)
        ):
            return False
        self._locks[tenant, conversation_id] = (holder, owner)
        self._owners.record(owner)
        return True

    def release(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release a lock if ``holder`` still holds it and has no unended run."""
        if self.has_run(tenant, holder):
            return
        lock = self._locks.get((tenant, conversation_id))
        if lock is not None and lock[0] == holder:
            del self._locks[tenant, conversation_id]

    def has_run(self, tenant: str, holder: str) -> bool:
        """Return whether the response ``holder`` has an unended run, or whether its run is being
        created."""
        return (tenant, holder) in self._running

    def add_run(self, tenant: str, holder: str) -> bool:
        """Record that the response ``holder`` has a run, or that its run is being created. From now
        on, ``release`` does not release the locks of ``holder``. Returns False if this was recorded
        before."""
        is_new = (tenant, holder) not in self._running
        self._running.add((tenant, holder))
        return is_new

    def restore_run(self, tenant: str, holder: str, conversation_id: str | None) -> None:
        """Record an unended run that an earlier process created. If the run has a conversation,
        also record the run's lock of this conversation. The lock has no owner until an owner claims
        the run. ``conversation_id``: None if the run has no conversation."""
        self.add_run(tenant, holder)
        if conversation_id is not None:
            self._locks[tenant, conversation_id] = (holder, "")

    def remove_run(self, tenant: str, holder: str) -> None:
        """Undo ``add_run``, because the run of the response ``holder`` could not be created."""
        self._running.discard((tenant, holder))

    def transfer(self, tenant: str, holder: str, owner: str) -> None:
        """Transfer the locks of a run to the owner that has claimed the run."""
        for key in self._keys_held_by(tenant, holder):
            self._locks[key] = (holder, owner)

    def remove_holder(self, tenant: str, holder: str) -> None:
        """Release the locks of a response that has ended or was deleted."""
        self._running.discard((tenant, holder))
        for key in self._keys_held_by(tenant, holder):
            del self._locks[key]

    def remove_tenant(self, tenant: str) -> None:
        """Release all locks of a tenant whose runs were deleted."""
        self._running = {key for key in self._running if key[0] != tenant}
        self._locks = {key: lock for key, lock in self._locks.items() if key[0] != tenant}

    def release_owner(self, owner: str) -> None:
        """Release the locks of an owner that stops. But an unended run of this owner keeps its
        lock, which passes to the next owner of the run."""
        for (tenant, conversation_id), (holder, lock_owner) in list(self._locks.items()):
            if lock_owner == owner and not self.has_run(tenant, holder):
                del self._locks[tenant, conversation_id]

    def _keys_held_by(self, tenant: str, holder: str) -> list[tuple[str, str]]:
        return [key for key, lock in self._locks.items() if (key[0], lock[0]) == (tenant, holder)]
