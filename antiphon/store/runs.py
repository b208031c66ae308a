"""The contract of a run store. It holds background runs, which any process can start, continue,
read and end.

Events are stored before readers see them. A run has one owner at a time. Each run has a counter,
its epoch. Whenever an owner claims the run, the epoch grows by one. After another owner has taken
over a run, the store refuses writes of the former owner, because they carry the old epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

from antiphon.store.common.subscriptions import Subscription, Subscriptions

from .records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    DueWebhook,
    EventBatch,
    EventPage,
    NewRun,
    RunEnd,
    RunLimit,
    Steering,
    WebhookEvent,
)

__all__ = ["LocalNotifications", "RunLimitReached", "RunListener", "RunStore"]


class RunListener(Protocol):
    """The listener of a run store: the part of a process that executes runs. The store notifies the
    listener of changes that other processes make.

    The methods are called on the event loop, and must not block or raise. A notification may be
    lost, so the listener also checks the store regularly. Notifications only make the listener
    react sooner.
    """

    def on_run_queued(self) -> None:
        """Called when there may be a run that can be claimed."""

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        """Called when another owner has taken over a run of this process. ``epoch``: the epoch
        that the run has since then."""


class RunLimitReached(Exception):
    """Raised if a tenant, or one of its API keys, already has as many runs as ``limit`` allows."""

    def __init__(self, limit: RunLimit) -> None:
        super().__init__(limit)
        self.limit = limit


class LocalNotifications:
    """The notifications within one process: batches for subscriptions, and changes for the
    listener. A store that several processes use must also notify the other processes."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()
        self.listener: RunListener | None = None

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Return a new subscription to a run."""
        return self.subscriptions.subscribe(tenant, response_id)

    def set_listener(self, listener: RunListener) -> None:
        """Set the listener, which replaces an earlier one."""
        self.listener = listener

    def notify_queued(self) -> None:
        """Tell the listener that there may be runs to claim."""
        if self.listener is not None:
            self.listener.on_run_queued()

    def notify_lost(self, lost: Iterable[tuple[str, int]]) -> None:
        """Tell the listener that other owners have taken over these runs. ``lost``: the id of each
        run and its new epoch."""
        if self.listener is not None:
            for response_id, epoch in lost:
                self.listener.on_run_lost(response_id, epoch)


class RunStore(Protocol):
    """The contract of a run store, which holds background runs. All methods raise ``StoreError`` if
    the store does not answer.

    A run store is safe for concurrent use in one event loop. Several processes can share a run
    store in PostgreSQL, and the workers of one server can share a run store in SQLite.

    ``notifications``: tells readers and the listener of this process what has changed.
    ``supports_steering``: whether clients can steer background runs. A store without support need
    not implement ``steering``, ``steered_runs`` and ``steer``.
    """

    notifications: LocalNotifications
    supports_steering: bool = False

    @abstractmethod
    async def create(self, run: NewRun) -> bool:
        """Store a new run, which nobody has claimed yet. Also store the response of the run, the
        input of the response, and the first events.

        Returns False and stores nothing if the response no longer has ``run.lock``. Raises
        ``RunLimitReached`` and stores nothing if the new run would exceed one of ``run.limits``.
        The limits hold exactly even if many processes create runs at the same time. Raises
        ``StoreError`` and stores nothing if there is a run with this id.

        The response can be loaded immediately. If ``response.store`` is true, requests can refer to
        the response's items by id as soon as the run has ended. Otherwise, they never can.
        """

    @abstractmethod
    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        """Claim runs for ``query.owner``. Only runs without a living owner are claimed. No run is
        claimed by two owners. The call counts as a heartbeat of the owner.

        A run can be claimed if it was never claimed, if it was released, or if its owner is dead.
        An owner is dead if it has sent no heartbeat for ``query.lease_s`` seconds. In a store that
        only one process uses, an owner is also dead if it belongs to an earlier process. The runs
        of one tenant are claimed oldest first. The runs of several tenants are claimed in turn: the
        next run is always one of the tenant with the fewest running runs. Runs with ``start_by``
        are claimed after all others, the one that has to start first before the rest. A run that
        was created ``by_name`` is only found by a query with its name.
        """

    @abstractmethod
    async def heartbeat(self, query: ClaimQuery) -> bool:
        """Record that ``query.owner`` is alive, which extends its claims and its conversation
        locks. Drop each ``start_by`` that is not after ``query.now``. Return whether ``claim``
        would find a run with this query, if it had no limits."""

    @abstractmethod
    async def release(self, owner: str) -> None:
        """Release the runs of an owner that stops. Other owners can claim these runs immediately.
        The owner's claims do not count as attempts, because no run has stopped the owner.

        The owner's conversation locks are released too, with one exception: the lock of a run that
        has not ended stays, and passes to the next owner of the run.
        """

    @abstractmethod
    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        """Take a run away from its owner, if it has one. The caller can end the run with the claim
        that is returned. The call counts as a claim, so it increases ``epoch`` and ``attempts``.
        The new owner has no id, and has sent a heartbeat now. So if the caller does not end the
        run, another owner can claim it later. Returns None if the run is unknown or has ended."""

    @abstractmethod
    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        """Append batches of events in one transaction. Several batches of one run must be in order.

        When this method returns, the batches are durable and all subscribers are notified. A batch
        that was already appended is ignored. So a caller that got no answer can repeat the call.
        Returns the ids of the runs whose claims are no longer valid, because the run was taken
        over, ended or deleted.
        """

    @abstractmethod
    async def end(self, claim: Claim, end: RunEnd) -> bool:
        """Store the last events of a run and its final response, in one transaction. Returns False
        and stores nothing if the claim is no longer valid, or if the run was steered more often
        than ``end.steering_count``. The conversation lock of the run is released."""

    async def steering(self, tenant: str, response_id: str) -> Steering | None:
        """Return the input with which clients steer a run. Returns None if the run is unknown or
        has ended."""
        return None

    async def steered_runs(self, owner: str) -> tuple[str, ...]:
        """Return the ids of the runs of an owner that were steered and have not ended."""
        return ()

    async def steer(self, tenant: str, response_id: str, steering: Steering) -> bool:
        """Replace the input with which clients steer a run by ``steering.body``, and increment its
        count. Returns False and changes nothing if the present count is not ``steering.count``, or
        if the run is unknown or has ended."""
        return False

    @abstractmethod
    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        """Return how many runs of a tenant have not ended. If ``api_key`` is given, count only the
        runs of this key."""

    async def add_webhooks(self, webhooks: Sequence[WebhookEvent]) -> None:
        """Keep webhooks until they are delivered. Does nothing for those that it has already. A
        store need not implement this. Then no webhooks report the ends of batches."""

    @abstractmethod
    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        """Return up to ``limit`` webhooks that are due at ``now``. The webhook that has been due
        longest comes first. The returned webhooks become due again at ``retry_at``. Both times are
        in Unix seconds."""

    @abstractmethod
    async def settle_webhook(self, event_id: str, retry_at: float | None) -> None:
        """Make a webhook due at ``retry_at``, in Unix seconds. If ``retry_at`` is None, delete the
        webhook, because it was delivered or abandoned. Does nothing if the webhook was deleted
        before."""

    @abstractmethod
    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        """Return all batches of events of a claimed run, with their tokens and times. The new owner
        of a run needs them to continue the run."""

    @abstractmethod
    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        """Return a page of whole batches with the events after sequence number ``after``. The page
        has at least ``limit`` events after ``after``, and no batch that is not needed for this. It
        has fewer if the log has no more events or the events are very long.

        The first batch may also contain events up to ``after``, which do not count. The batches
        have no ``tokens`` and no ``at``. Returns None if the run is unknown, or if its events are
        no longer kept.
        """

    @abstractmethod
    async def lock_conversation(
        self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float
    ) -> bool:
        """Lock a conversation for the response ``holder``. The lock can be taken before ``create``
        stores the run of the response. ``lease_s``: seconds without a heartbeat after which the
        owner of another lock is dead.

        Returns False in these cases:

        - Another response holds the lock, and its owner is alive.
        - Another response holds the lock, and its run has not ended. The next owner of this run
          will continue it under the same lock.
        - The run of ``holder`` has already ended, so nothing would release the new lock.

        When an owner claims a run, the lock of the run passes to this owner. If the owner of a lock
        ends before ``create`` has stored the run of the response, the lock may be lost.
        """

    @abstractmethod
    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release the lock that the response ``holder`` has on a conversation. Do nothing if the
        response does not have this lock, or if its run has not ended.

        If ``create`` raises an error, it is unknown whether the run was stored. The caller of
        ``create`` can call this method nevertheless: a stored run that has not ended keeps its
        lock."""

    # --- notifications ---------------------------------------------------------------------------

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Subscribe to the batches of events that a run appends from now on. The caller closes the
        subscription.

        Subscribe before you call ``events``. Otherwise you miss the batches that are appended
        between the two calls.
        """
        return self.notifications.subscribe(tenant, response_id)

    def set_listener(self, listener: RunListener) -> None:
        """Set the listener. From now on, the listener is told when another process has changed a
        run. The new listener replaces an earlier one."""
        self.notifications.set_listener(listener)
