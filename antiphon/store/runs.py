"""The contract of a run store: background runs that any process can start, continue, follow and
end.

Events are stored before readers see them. A run has one owner at a time. Each claim of a run raises
its epoch, a counter. After a takeover, the store refuses what the former owner writes under the old
epoch.
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
    """The part of a process that works on runs. The store notifies it of changes that other
    processes make.

    The methods are called on the event loop, and must not block or raise. A notification may be
    lost. Notifications only save time, because the listener later notices each change without them.
    """

    def on_run_queued(self) -> None:
        """Called when there may be a run that can be claimed."""

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        """Called when another owner has taken over a run of this process. ``epoch``: the new epoch
        of the run."""


class RunLimitReached(Exception):
    """Raised if a tenant, or one of its API keys, already has as many runs as ``limit`` allows."""

    def __init__(self, limit: RunLimit) -> None:
        super().__init__(limit)
        self.limit = limit


class RunStore(Protocol):
    """The contract of a run store. Safe for concurrent use in one event loop, and with PostgreSQL
    by many processes. All methods raise ``StoreError`` if the store does not answer."""

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
        """Store a new run that nobody has claimed: its response with the input, and its first
        events.

        The response can be loaded at once. Its items can be referenced after the end of the run,
        and only if ``response.store`` is true. ``lock``: the lock of the conversation that the run
        continues. The run keeps this lock until its end. ``api_key``: the name of the API key for
        which the run counts. Returns False and stores nothing if the response has lost its lock.
        Raises ``RunLimitReached`` and stores nothing if another run would exceed one of the
        ``limits``. The limits hold exactly even if many processes create runs at the same time.
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
        """Claim runs of these models that no living owner has. Of the runs of one tenant, the
        oldest is claimed first. Each next run belongs to the tenant with the fewest running runs.

        A run can be claimed if it was never claimed, if it was released, or if its owner is dead:
        the owner sent no heartbeat for ``lease_s`` seconds. In a store that one process uses, all
        owners of an earlier process are dead. No run is claimed by two owners.

        ``held``: ids of the runs that ``owner`` works on. The owner's other runs are claimed again,
        because the answer to an earlier claim was lost, or because the work on them failed. If
        ``held`` is None, the owner works on all its runs. ``limit``: largest number of runs to
        claim. ``tenant_limit``: largest number of runs of one tenant that ``owner`` may have. None
        means no limit.
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
        Return whether a ``claim`` of these models without limits would find a run."""

    async def release(self, owner: str) -> None:
        """Release the runs and locks of an owner that stops. Its runs can be claimed at once. Its
        conversation locks are released, except the locks of runs."""

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        """Claim a run from its owner, in order to end the run. Returns None if the run is unknown
        or has ended."""

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        """Append batches in one transaction. Several batches of one run must be in order.

        When this method returns, the batches are durable and all subscribers are notified. A batch
        that was already appended is ignored, so a caller that got no answer can repeat the call.
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
        """Store the last events of a run and its response in a terminal state, in one transaction.
        ``batch.count`` may be 0.

        ``conversation``: the conversation to which the input and the output are appended, if it
        still exists. The lock of the run is released. ``expires_at``: unix seconds at which the
        response is deleted. ``webhook``: a webhook that is kept until it is delivered, even if the
        response is deleted. ``usage`` is added to the usage log. Returns False and stores nothing
        if the claim is no longer valid.
        """

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        """Return how many runs of a tenant have not ended. If ``api_key`` is given, count only the
        runs of this key."""

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        """Return up to ``limit`` webhooks that are due at ``now``. Webhooks that have been due
        longest come first. They are not returned again before ``retry_at``. Both times are in unix
        seconds."""

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        """Make a webhook due at ``until``, in unix seconds. Does nothing if the webhook was
        deleted."""

    async def delete_webhook(self, event_id: str) -> None:
        """Delete a webhook that was delivered or abandoned."""

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        """Return all batches of a claimed run with their tokens and times. The new owner of a run
        needs them to continue it."""

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        """Return the events after sequence number ``after`` as whole batches. The page has at least
        ``limit`` events, or all that exist, or fewer if the events are very long.

        The first batch may start before ``after``. The batches have no ``tokens`` and no ``at``.
        Returns None if the run is unknown, or if its events are no longer kept.
        """

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Subscribe to the batches that a run appends from now on.

        The caller closes the subscription. Subscribe before you read ``events``: otherwise you miss
        batches that are appended between the two calls.
        """

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        """Lock a conversation for the response ``holder``. This call may precede ``create``.

        Returns False if another response holds the lock, and its owner is alive or its run has not
        ended. An unended run keeps its lock, because another owner will continue it. Returns False
        also if the run of ``holder`` has already ended, because no later step would release such a
        lock. When an owner claims a run, the lock of the run passes to this owner. In a store that
        one process uses, only the locks given to ``create`` survive the process.
        """

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release a lock if ``holder`` still holds it and has no unended run. The run may exist
        although the caller of ``create`` got no answer. It keeps its lock."""

    def set_listener(self, listener: RunListener) -> None:
        """Notify this listener from now on. It replaces an earlier listener."""
