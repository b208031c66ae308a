"""The contract of a run store: background runs that any process can start, continue, follow and
end.

Events are stored before readers see them. A run has one owner at a time, under an epoch. A takeover
raises the epoch; what the former owner still writes is refused.
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
    """The part of a process that works on runs and is notified of changes by others.

    Called on the event loop; must not block or raise. Notifications may be lost: they only save
    time.
    """

    def on_run_queued(self) -> None:
        """Called when there may be a run to claim."""

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        """Called when another owner took the run over, under ``epoch``."""


class RunLimitReached(Exception):
    """A tenant, or one of its keys, has as many runs as it may have."""

    def __init__(self, limit: RunLimit) -> None:
        super().__init__(limit)
        self.limit = limit


class RunStore(Protocol):
    """The contract of a run store. Safe for concurrent use in one event loop; with PostgreSQL, by
    many processes. All methods raise ``StoreError`` if the store does not answer."""

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
        """Store a new, unclaimed run: its response with the input, and its first events.

        The response can be loaded at once. Its items can be referenced after the end of the run,
        and only if ``response.store`` is true. ``lock``: the lock of the conversation that the run
        continues; the run keeps it until its end. False, and nothing is stored, if the response has
        lost this lock. ``api_key``: the name of the key that is charged. Raises
        ``RunLimitReached``, and stores nothing, if a further run would exceed one of the
        ``limits``. This is exact even if many processes create runs at the same time.
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
        """Claim runs of these models that no living owner has. The oldest run of a tenant comes
        first. Among tenants, the next run is that of the tenant with the fewest running runs.

        Free are runs that were never claimed, that were released, or whose owner sent no heartbeat
        for ``lease_s`` seconds. In a store that one process uses, all owners of an earlier process
        are dead. No run is claimed by two owners.

        ``held``: ids of the runs that ``owner`` works on. Its other runs are claimed again, because
        the answer to an earlier claim was lost, or the work on them failed. None: it works on all
        its runs. ``tenant_limit``: how many runs of one tenant ``owner`` may have; None: any
        number.
        """

    async def heartbeat(
        self,
        owner: str,
        models: Collection[str] = (),
        *,
        lease_s: float = math.inf,
        held: Collection[str] | None = None,
    ) -> bool:
        """Record that an owner is alive. This extends its claims and its conversation locks. Return
        whether there are runs that ``claim`` of these models would find without limits.
        """

    async def release(self, owner: str) -> None:
        """Release an owner that stops: its runs can be claimed at once, and its locks without a run
        are released.
        """

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        """Claim a run from its owner, in order to end it. None if it is unknown or has ended."""

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        """Append batches in one transaction; a run may occur several times, in order.

        When this returns, the batches are durable and all subscribers are notified. A batch that
        was already appended is ignored, so a caller without an answer can repeat the call. Returns
        the ids of lost runs: taken over, ended or deleted.
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
        """Store the last events of a run (``batch.count`` may be 0) and its response in a terminal
        state, in one transaction.

        ``conversation``: append the input and the output to it, if it still exists; its lock is
        released. ``expires_at``: unix seconds at which the response is deleted. ``webhook`` is kept
        until it is delivered, even if the response is deleted. ``usage`` is added to the usage log.
        False, and nothing is stored, if the run was lost.
        """

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        """Return how many runs of a tenant have not ended. ``api_key``: only those of this key."""

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        """Return up to ``limit`` webhooks that are due at ``now``, those waiting longest first.
        They are not returned again before ``retry_at``.
        """

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        """Make a webhook due at ``until``. No effect if it was deleted."""

    async def delete_webhook(self, event_id: str) -> None:
        """Delete a webhook that was delivered or given up."""

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        """Return all batches of a run with their tokens and times, so that its new owner can
        continue it."""

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        """Return whole batches of the events after sequence number ``after``: at least ``limit``
        events, or all there are, or fewer if they are very long.

        The first batch may start before ``after``. ``tokens`` and ``at`` are left out. None if
        there is no such run, or if its events are no longer kept.
        """

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """Subscribe to the batches that a run appends from now on.

        The caller closes the subscription. Subscribe before reading ``events``, so that no batch is
        missed.
        """

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        """Lock a conversation for the response ``holder``. This may precede ``create``.

        False if another response holds the lock and its owner is alive or its run has not ended:
        another owner will continue it. False also if the run of ``holder`` has ended: a late
        request to lock would keep the lock for ever. The lock passes on with the claim of the run.
        In a store that one process uses, only the locks given to ``create`` survive the process.
        """

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Release a lock if ``holder`` still holds it and has no unfinished run. The run may have
        been created with any conversation, since the answer to ``create`` may be lost."""

    def set_listener(self, listener: RunListener) -> None:
        """Notify this listener, instead of an earlier one, from now on."""
