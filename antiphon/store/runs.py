"""The contract of a run store. It holds background runs, which any process can start, continue,
read and end.

Events are stored before readers see them. A run has one owner at a time. Each run has a counter,
its epoch. Whenever an owner claims the run, the epoch grows by one. After another owner has taken
over a run, the store refuses writes of the former owner, because they carry the old epoch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Protocol

from antiphon.store.common.subscriptions import Subscription

from .records import (
    Append,
    Claim,
    ConversationLock,
    DueWebhook,
    EventBatch,
    EventPage,
    Job,
    RunLimit,
    StoredResponse,
    WebhookEvent,
)
from .usage import UsageRecord

__all__ = ["RunLimitReached", "RunListener", "RunStore"]


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


class RunStore(Protocol):
    """The contract of a run store, which holds background runs. All methods raise ``StoreError`` if
    the store does not answer.

    A run store is safe for concurrent use in one event loop. Several processes can share a run
    store in PostgreSQL, and the workers of one server can share a run store in SQLite."""

    async def create(
        self,
        job: Job,
        stored: StoredResponse,
        batch: EventBatch,
        *,
        lock: ConversationLock | None = None,
        api_key: str = "",
        limits: Sequence[RunLimit] = (),
    ) -> bool:
        """Store a new run, which nobody has claimed yet. Also store the response of the run, the
        input of the response, and the first events.

        Returns False and stores nothing if the response no longer has ``lock``. Raises
        ``RunLimitReached`` and stores nothing if the new run would exceed one of the ``limits``.
        The limits hold exactly even if many processes create runs at the same time.

        - ``lock``: the lock of the conversation that the run continues. The run keeps this lock
          until its end.
        - ``api_key``: the name of the API key that created the run. Limits of this key count the
          run.

        The response can be loaded immediately. If ``response.store`` is true, requests can refer to
        the response's items by id as soon as the run has ended. Otherwise, they never can.
        """

    async def claim(
        self,
        owner: str,
        models: Collection[str],
        *,
        limit: int,
        lease_s: float,
        held: Collection[str] | None = None,
        tenant_limit: int | None = None,
    ) -> tuple[Claim, ...]:
        """Claim runs of these models for ``owner``. Only runs without a living owner are claimed.
        No run is claimed by two owners.

        A run can be claimed if it was never claimed, if it was released, or if its owner is dead.
        An owner is dead if it has sent no heartbeat for ``lease_s`` seconds. In a store that only
        one process uses, an owner is also dead if it belongs to an earlier process. The runs of one
        tenant are claimed oldest first. The runs of several tenants are claimed in turn: the next
        run is always one of the tenant with the fewest running runs.

        - ``limit``: the largest number of runs to claim.
        - ``tenant_limit``: the largest number of runs of one tenant that ``owner`` may have. None
          means no limit.
        - ``held``: ids of the runs that ``owner`` works on. Other runs that the store records as
          runs of ``owner`` are claimed again, because nobody works on them. Such runs exist if
          ``owner`` did not get the result of an earlier call of ``claim``, or if its work on a run
          failed. None means that ``owner`` works on all runs that the store records as its runs.
        """

    async def heartbeat(
        self,
        owner: str,
        models: Collection[str] = (),
        *,
        lease_s: float = math.inf,
        held: Collection[str] | None = None,
    ) -> bool:
        """Record that an owner is alive, which extends its claims and its conversation locks.
        Return whether ``claim`` would find a run of these models. ``lease_s``, ``held``: as in
        ``claim``."""

    async def release(self, owner: str) -> None:
        """Release the runs of an owner that stops. Other owners can claim these runs immediately.

        The owner's conversation locks are released too, with one exception: the lock of a run that
        has not ended stays, and passes to the next owner of the run.
        """

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        """Take a run away from its owner, if it has one. The caller can end the run with the claim
        that is returned. Returns None if the run is unknown or has ended."""

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        """Append batches of events in one transaction. Several batches of one run must be in order.

        When this method returns, the batches are durable and all subscribers are notified. A batch
        that was already appended is ignored. So a caller that got no answer can repeat the call.
        Returns the ids of the runs whose claims are no longer valid, because the run was taken
        over, ended or deleted.
        """

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: EventBatch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
        webhook: WebhookEvent | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        """Store the last events of a run and its final response, in one transaction.
        ``batch.count`` may be 0. Returns False and stores nothing if the claim is no longer valid.
        The conversation lock of the run is released.

        - ``conversation``: the conversation to which the input and the output are appended, if it
          still exists.
        - ``expires_at``: Unix seconds at which the response is deleted.
        - ``webhook``: a webhook that is kept until it is delivered, even if the response is
          deleted.
        - ``usage``: a record to add to the usage log.
        """

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        """Return how many runs of a tenant have not ended. If ``api_key`` is given, count only the
        runs of this key."""

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        """Return up to ``limit`` webhooks that are due at ``now``. The webhook that has been due
        longest comes first. The returned webhooks become due again at ``retry_at``. Both times are
        in Unix seconds."""

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        """Make a webhook due at ``until``, in unix seconds. Does nothing if the webhook was
        deleted."""

    async def delete_webhook(self, event_id: str) -> None:
        """Delete a webhook that was delivered or abandoned."""

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        """Return all batches of events of a claimed run, with their tokens and times. The new owner
        of a run needs them to continue the run."""

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        """Return a page of whole batches with the events after sequence number ``after``. The page
        has at least ``limit`` events, unless the log has no more events or the events are very
        long.

        The first batch may also contain events up to ``after``. The batches have no ``tokens`` and
        no ``at``. Returns None if the run is unknown, or if its events are no longer kept.
        """

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Subscribe to the batches of events that a run appends from now on. The caller closes the
        subscription.

        Subscribe before you call ``events``. Otherwise you miss the batches that are appended
        between the two calls.
        """

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        """Lock a conversation for the response ``holder``. ``owner``: the server that works on this
        response. The lock can be taken before ``create`` stores the run of the response.

        Returns False in these cases:

        - Another response holds the lock, and its owner is alive.
        - Another response holds the lock, and its run has not ended. The next owner of this run
          will continue it under the same lock.
        - The run of ``holder`` has already ended, so nothing would release the new lock.

        When an owner claims a run, the lock of the run passes to this owner.

        A store that only one process uses keeps the locks in memory. If the process ends before
        ``create`` has stored the run of a response, the lock of this response is lost.
        """

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release the lock that the response ``holder`` has on a conversation. Do nothing if the
        response does not have this lock, or if its run has not ended.

        If ``create`` raises an error, it is unknown whether the run was stored. The caller of
        ``create`` can call this method nevertheless: a stored run that has not ended keeps its
        lock."""

    def set_listener(self, listener: RunListener) -> None:
        """Set the listener. From now on, the listener is told when another process has changed a
        run. The new listener replaces an earlier one."""
