"""The in-memory run store, the reference implementation of the contract ``RunStore``. Runs do not
survive the process."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.common.claims import choose_fairly
from antiphon.store.common.subscriptions import Subscription, Subscriptions
from antiphon.store.records import (
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
from antiphon.store.runs import RunLimitReached, RunListener
from antiphon.store.usage import UsageRecord

from .locks import ConversationLocks, OwnerHeartbeats
from .reservations import Reservations

__all__ = ["MemoryRuns"]

_Key = tuple[str, str]

_first, _last = attrgetter("first"), attrgetter("last")

#: Owner of runs that were taken over in order to end them.
_TAKEN_OVER = ""


class _Run(Struct):
    """A run and its event log.

    ``ended_at`` is None while the run has not ended, and 0 after its end. The first sweep after the
    end sets ``ended_at`` to the Unix time of that sweep.
    """

    job: Job
    api_key: str = ""
    batches: list[EventBatch] = []
    epoch: int = 0
    attempts: int = 0
    owner: str | None = None
    ended_at: int | None = None

    @property
    def next_sequence_number(self) -> int:
        """The sequence number of the next event."""
        return self.batches[-1].last + 1 if self.batches else 0


class _SaveResponse(Protocol):
    """A function that stores a response. ``listed``: whether other requests can refer to the items
    of the response by id."""

    def __call__(
        self,
        tenant: str,
        stored: StoredResponse,
        conversation: str | None = None,
        *,
        expires_at: int | None = None,
        listed: bool = True,
        usage: UsageRecord | None = None,
    ) -> None: ...


class MemoryRuns:
    """Implements ``RunStore`` with dictionaries. ``save``: a function that stores a response in the
    store to which these runs belong. ``check``: a function that the methods call first. It raises
    ``StoreError`` if the store is closed."""

    def __init__(self, save: _SaveResponse, check: Callable[[], None]) -> None:
        self._save = save
        self._check = check
        self._owners = OwnerHeartbeats()
        self._locks = ConversationLocks(self._owners)
        #: Reservations for responses that are being generated.
        self.reservations = Reservations(self._owners)
        self._subscriptions = Subscriptions()
        self._listener: RunListener | None = None
        self._runs: dict[_Key, _Run] = {}
        self._webhooks: dict[str, tuple[WebhookEvent, int]] = {}

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
        self._check()
        if lock is not None and not self.is_locked(job.tenant, job.id, lock):
            return False
        for limit in limits:
            if self._count_unended(job.tenant, limit.api_key) >= limit.max_runs:
                raise RunLimitReached(limit)
        if (job.tenant, job.id) in self._runs:
            raise StoreError("The store has a run of this id.")
        run = self._runs[job.tenant, job.id] = _Run(job, api_key)
        self._locks.add_run(job.tenant, job.id)
        self._save(job.tenant, stored, listed=False)
        self._add_batch(run, batch)
        self._notify_queued()
        return True

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
        self._check()
        if limit < 1:
            return ()
        self._owners.record(owner)
        is_free = self._owners.free_runs(owner, lease_s, held)
        queued: dict[str, list[tuple[int, _Run]]] = {}
        running, own = Counter[str](), Counter[str]()
        for rank, run in enumerate(self._runs.values()):
            if run.ended_at is not None:
                continue
            running[run.job.tenant] += run.owner is not None
            if not is_free(run.job.id, run.owner):
                own[run.job.tenant] += run.owner == owner
            elif run.job.model in models:
                queued.setdefault(run.job.tenant, []).append((rank, run))
        room = None if tenant_limit is None else {name: tenant_limit - own[name] for name in queued}
        claims: list[Claim] = []
        for run in choose_fairly(queued, running, limit=limit, room=room):
            claims.append(self._take(run, owner))
            self._locks.transfer(run.job.tenant, run.job.id, owner)
        return tuple(claims)

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
        is_free = self._owners.free_runs(owner, lease_s, held)
        return any(
            run.ended_at is None and run.job.model in models and is_free(run.job.id, run.owner)
            for run in self._runs.values()
        )

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
        if not self._locks.has_run(tenant, holder) and self._has_ended(tenant, holder):
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

    async def release(self, owner: str) -> None:
        self._check()
        for run in self._runs.values():
            if run.owner == owner and run.ended_at is None:
                run.owner = None
        self._locks.release_owner(owner)
        self._notify_queued()

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        self._check()
        run = self._runs.get((tenant, response_id))
        if run is None or run.ended_at is not None:
            return None
        self._owners.record(_TAKEN_OVER)
        return self._take(run, _TAKEN_OVER)

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        self._check()
        lost: set[str] = set()
        for append in appends:
            run = self._claimed_run(append.claim)
            if run is None:
                lost.add(append.claim.job.id)
            elif append.batch.first >= run.next_sequence_number:
                self._add_batch(run, append.batch)
        return frozenset(lost)

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
        self._check()
        run = self._claimed_run(claim)
        if run is None:
            return False
        run.ended_at = 0
        self._add_batch(run, batch)
        if webhook is not None:
            self._webhooks[webhook.id] = (webhook, 0)
        self._save(
            claim.job.tenant,
            stored,
            conversation,
            expires_at=expires_at,
            listed=stored.response.store,
            usage=usage,
        )
        self._locks.remove_holder(claim.job.tenant, claim.job.id)
        self._subscriptions.mark_stale([(claim.job.tenant, claim.job.id)])
        return True

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        self._check()
        return self._count_unended(tenant, api_key)

    def _count_unended(self, tenant: str, api_key: str | None) -> int:
        return sum(
            run.ended_at is None and run.job.tenant == tenant and api_key in (None, run.api_key)
            for run in self._runs.values()
        )

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        self._check()
        due = [(event, count) for event, count in self._webhooks.values() if event.due_at <= now]
        due.sort(key=lambda pair: pair[0].due_at)
        for event, attempts in due[:limit]:
            self._webhooks[event.id] = (replace(event, due_at=retry_at), attempts + 1)
        return tuple(DueWebhook(event.id, event.body, count + 1) for event, count in due[:limit])

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        self._check()
        if event_id in self._webhooks:
            event, attempts = self._webhooks[event_id]
            self._webhooks[event_id] = (replace(event, due_at=until), attempts)

    async def delete_webhook(self, event_id: str) -> None:
        self._check()
        self._webhooks.pop(event_id, None)

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        self._check()
        run = self._runs.get((claim.job.tenant, claim.job.id))
        return tuple(run.batches) if run is not None else ()

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        self._check()
        run = self._runs.get((tenant, response_id))
        if run is None:
            return None
        # Sequence numbers have no gaps, so ``after + limit`` is the number of the last event.
        begin = bisect_right(run.batches, after, key=_last)
        end = bisect_right(run.batches, after + limit, key=_first)
        batches = tuple(replace(batch, tokens=b"", at=None) for batch in run.batches[begin:end])
        return EventPage(batches, ended=run.ended_at is not None and end >= len(run.batches))

    # --- called by the store ---------------------------------------------------------------------

    def delete(self, key: _Key) -> None:
        """Delete the run of a deleted response."""
        if self._runs.pop(key, None) is not None:
            self._locks.remove_holder(*key)
            self._subscriptions.mark_stale([key])

    def delete_tenant(self, tenant: str) -> int:
        """Delete the runs of a tenant. Return their number."""
        keys = [key for key in self._runs if key[0] == tenant]
        for key in keys:
            self.delete(key)
        return len(keys)

    def count_active(self, tenant: str) -> tuple[int, int]:
        """Count the runs of a tenant that have not ended. Return two numbers: how many of these
        runs have no owner (they are queued), and how many have an owner."""
        active = [run for run in self._runs.values() if run.job.tenant == tenant]
        active = [run for run in active if run.ended_at is None]
        queued = sum(run.owner is None for run in active)
        return queued, len(active) - queued

    def is_running(self, key: _Key) -> bool:
        """Return whether the response has an unended run."""
        run = self._runs.get(key)
        return run is not None and run.ended_at is None

    def expire(self, before: int | None, now: int) -> None:
        """Delete the runs that ended before ``before``, with their events. If ``before`` is None,
        delete nothing. Both times are in Unix seconds.

        The store has no clock, so it does not know when a run ended. The time ``now`` of the first
        sweep after the end counts as the time of the end.
        """
        for key, run in list(self._runs.items()):
            if run.ended_at == 0:
                run.ended_at = now
            if run.ended_at is not None and before is not None and run.ended_at < before:
                del self._runs[key]

    # --- private ---------------------------------------------------------------------------------

    def _has_ended(self, tenant: str, response_id: str) -> bool:
        run = self._runs.get((tenant, response_id))
        return run is not None and run.ended_at is not None

    def _take(self, run: _Run, owner: str) -> Claim:
        old_owner, run.owner = run.owner, owner
        run.epoch += 1
        run.attempts += 1
        self._notify_lost(run.job.id, run.epoch, old_owner)
        return Claim(job=run.job, epoch=run.epoch, attempts=run.attempts)

    def _claimed_run(self, claim: Claim) -> _Run | None:
        run = self._runs.get((claim.job.tenant, claim.job.id))
        if run is None or run.ended_at is not None or run.epoch != claim.epoch:
            return None
        return run

    def _add_batch(self, run: _Run, batch: EventBatch) -> None:
        if batch.count:
            run.batches += batch.rows
            run.attempts = 0
            self._subscriptions.publish(run.job.tenant, run.job.id, replace(batch, tokens=b""))

    def _notify_queued(self) -> None:
        if self._listener is not None:
            self._listener.on_run_queued()

    def _notify_lost(self, response_id: str, epoch: int, old_owner: str | None) -> None:
        """Notify the listener that another owner took over a run from ``old_owner``. If the run had
        no owner, do nothing."""
        if old_owner and self._listener is not None:
            self._listener.on_run_lost(response_id, epoch)
