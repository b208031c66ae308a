"""The part of a run store's state that is kept in memory if only one process uses the store. This
part consists of heartbeats, conversation locks, reservations, subscriptions, and the
``RunListener``, which is notified of changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from antiphon.store.records import ConversationLock
from antiphon.store.runs import RunListener

from .locks import ConversationLocks, OwnerHeartbeats
from .reservations import Reservations
from .subscriptions import Subscription, Subscriptions

__all__ = ["SingleProcessRuns"]


class SingleProcessRuns:
    """Base class of the run stores that only one process uses. ``check``: a function that the
    methods call first. It raises ``StoreError`` if the store is closed."""

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check or (lambda: None)
        self._owners = OwnerHeartbeats()
        self._locks = ConversationLocks(self._owners)
        #: Reservations for responses that are being generated.
        self.reservations = Reservations(self._owners)
        self._subscriptions = Subscriptions()
        self._listener: RunListener | None = None

    async def heartbeat(
        self,
        owner: str,
        models: Collection[str] = (),
        *,
        lease_s: float = math.inf,
        held: Collection[str] | None = None,
    ) -> bool:
        self._check()
        self._owners.record(owner)
        return await self._has_free_run(models, self._owners.free_runs(owner, lease_s, held))

    def forget_tenant(self, tenant: str) -> None:
        """Remove a tenant's conversation locks, and its reservations for responses that are being
        generated. Called when the tenant is deleted."""
        self._locks.remove_tenant(tenant)
        self.reservations.remove_tenant(tenant)

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        return self._subscriptions.subscribe(tenant, response_id)

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        self._check()
        if not self._locks.has_run(tenant, holder) and await self._has_ended(tenant, holder):
            return False
        return self._locks.acquire(tenant, conversation_id, holder, owner, lease_s=lease_s)

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        self._locks.release(tenant, conversation_id, holder)

    def is_locked(self, tenant: str, holder: str, lock: ConversationLock) -> bool:
        """Return whether the response ``holder`` still has this lock.

        If it has, the call counts as a heartbeat of the lock's owner, which is this process. So the
        lock does not expire during the write that the caller starts next.
        """
        is_locked = self._locks.is_held(tenant, lock.conversation, holder, lock.owner)
        if is_locked:
            self._owners.record(lock.owner)
        return is_locked

    def set_listener(self, listener: RunListener) -> None:
        self._listener = listener

    async def _has_free_run(
        self, models: Collection[str], is_free: Callable[[str, str | None], bool]
    ) -> bool:
        """Return whether any unended run of these models can be claimed. ``is_free``: a function
        that gets the id and the owner of a run, and returns whether the run can be claimed."""
        raise NotImplementedError

    async def _has_ended(self, tenant: str, response_id: str) -> bool:
        """Return whether the response has a run that has ended."""
        raise NotImplementedError

    def _notify_queued(self) -> None:
        if self._listener is not None:
            self._listener.on_run_queued()

    def _notify_lost(self, response_id: str, epoch: int, old_owner: str | None) -> None:
        """Notify the listener that another owner took over a run from ``old_owner``. If the run had
        no owner, do nothing."""
        if old_owner and self._listener is not None:
            self._listener.on_run_lost(response_id, epoch)
