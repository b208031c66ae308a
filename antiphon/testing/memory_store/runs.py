"""The in-memory run store, the reference implementation of the contract ``RunStore``. Runs do not
survive the process."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.common.claims import Rank, choose_fairly
from antiphon.store.common.saving import Saving
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    DueWebhook,
    EventBatch,
    EventPage,
    Job,
    NewRun,
    RunEnd,
    Steering,
    WebhookEvent,
)
from antiphon.store.runs import LocalNotifications, RunLimitReached, RunStore

from .locks import ConversationLocks, OwnerHeartbeats
from .part import Part
from .reservations import Reservations

_Key = tuple[str, str]

_first, _last = attrgetter("first"), attrgetter("last")


class _Run(Struct):
    """A run and its event log.

    ``ended_at`` is None while the run has not ended, and 0 after its end. The first sweep after the
    end sets ``ended_at`` to the Unix time of that sweep.
    """

    job: Job
    api_key: str = ""
    by_name: bool = False
    batches: list[EventBatch] = []
    epoch: int = 0
    attempts: int = 0
    owner: str | None = None
    ended_at: int | None = None
    steering: Steering = Steering()
    start_by: int = 0

    @property
    def next_sequence_number(self) -> int:
        """The sequence number of the next event."""
        return self.batches[-1].last + 1 if self.batches else 0


class MemoryRuns(Part, RunStore):
    """Implements ``RunStore`` with dictionaries. ``save``: a function that stores a response in the
    store to which these runs belong."""

    supports_steering = True

    def __init__(self, save: Callable[[Saving], None], check: Callable[[], None]) -> None:
        super().__init__(check)
        self._save = save
        self.owners = OwnerHeartbeats()
        self.locks = ConversationLocks(self.owners)
        #: Reservations for responses that are being generated.
        self.reservations = Reservations(self.owners)
        self.notifications = LocalNotifications()
        self.rows: dict[_Key, _Run] = {}
        self._webhooks: dict[str, tuple[WebhookEvent, int]] = {}

    async def create(self, run: NewRun) -> bool:
        job, lock = run.job, run.lock
        if lock is not None and not self.is_locked(job.tenant, job.id, lock):
            return False
        for limit in run.limits:
            if await self.count_unended(job.tenant, limit.api_key) >= limit.max_runs:
                raise RunLimitReached(limit)
        if (job.tenant, job.id) in self.rows:
            raise StoreError("The store has a run of this id.")
        row = _Run(job, run.api_key, run.by_name, start_by=run.start_by)
        self.rows[job.tenant, job.id] = row
        self.locks.add_run(job.tenant, job.id)
        self._save(Saving.of_new_run(run))
        self._add_batch(row, run.batch)
        self.notifications.notify_queued()
        return True

    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        if query.limit < 1:
            return ()
        self.owners.record(query.owner)
        is_free = self.owners.free_runs(query)
        queued: dict[str, list[tuple[Rank, _Run]]] = {}
        running, own = Counter[str](), Counter[str]()
        for rank, run in enumerate(self.rows.values()):
            if run.ended_at is not None:
                continue
            running[run.job.tenant] += run.owner is not None
            if not is_free(run.job.id, run.owner):
                own[run.job.tenant] += run.owner == query.owner
            elif query.finds(run.job.id, run.job.model, by_name=run.by_name):
                queued.setdefault(run.job.tenant, []).append(((run.start_by, rank), run))
        room = None
        if query.tenant_limit is not None:
            room = {name: query.tenant_limit - own[name] for name in queued}
        claims: list[Claim] = []
        for runs in queued.values():
            runs.sort(key=lambda ranked: ranked[0])
        for run in choose_fairly(queued, running, limit=query.limit, room=room):
            claims.append(self._take(run, query.owner))
            self.locks.transfer(run.job.tenant, run.job.id, query.owner)
        return tuple(claims)

    async def heartbeat(self, query: ClaimQuery) -> bool:
        self.owners.record(query.owner)
        is_free = self.owners.free_runs(query)
        for run in self.rows.values():
            if run.start_by <= query.now:
                run.start_by = 0
        return any(
            run.ended_at is None
            and query.finds(run.job.id, run.job.model, by_name=run.by_name)
            and is_free(run.job.id, run.owner)
            for run in self.rows.values()
        )

    async def lock_conversation(
        self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float
    ) -> bool:
        if not self.locks.has_run(tenant, holder) and self.has_run((tenant, holder)):
            return False
        return self.locks.acquire(tenant, holder, lock, lease_s=lease_s)

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        self.locks.release(tenant, conversation_id, holder)

    def is_locked(self, tenant: str, holder: str, lock: ConversationLock) -> bool:
        """Return whether the response ``holder`` still has this lock.

        If it has, the call counts as a heartbeat of the lock's owner, which is this process, so the
        lock does not expire during the write that the caller starts next.
        """
        is_locked = self.locks.is_held(tenant, holder, lock)
        if is_locked:
            self.owners.record(lock.owner)
        return is_locked

    async def release(self, owner: str) -> None:
        for run in self.rows.values():
            if run.owner == owner and run.ended_at is None:
                run.owner = None
                run.attempts = max(0, run.attempts - 1)
        self.locks.release_owner(owner)
        self.notifications.notify_queued()

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        run = self.rows.get((tenant, response_id))
        if run is None or run.ended_at is not None:
            return None
        self.owners.record(owner := f"takes over {tenant} {response_id}")
        return self._take(run, owner)

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        lost: set[str] = set()
        for append in appends:
            run = self._claimed_run(append.claim)
            if run is None:
                lost.add(append.claim.job.id)
            elif append.batch.first >= run.next_sequence_number:
                self._add_batch(run, append.batch)
        return frozenset(lost)

    async def end(self, claim: Claim, end: RunEnd) -> bool:
        run = self._claimed_run(claim)
        if run is None or run.steering.count != end.steering_count:
            return False
        run.ended_at = 0
        self._add_batch(run, end.batch)
        await self.add_webhooks(end.webhooks)
        self._save(Saving.of_run_end(claim.job.tenant, end))
        self.locks.remove_holder(claim.job.tenant, claim.job.id)
        self.notifications.subscriptions.mark_stale([(claim.job.tenant, claim.job.id)])
        if end.successor is not None:
            await self.create(end.successor)
        return True

    async def steering(self, tenant: str, response_id: str) -> Steering | None:
        run = self.rows.get((tenant, response_id))
        return None if run is None or run.ended_at is not None else run.steering

    async def steered_runs(self, owner: str) -> tuple[str, ...]:
        unended = (run for run in self.rows.values() if run.ended_at is None)
        return tuple(run.job.id for run in unended if run.owner == owner and run.steering.count)

    async def steer(self, tenant: str, response_id: str, steering: Steering) -> bool:
        if await self.steering(tenant, response_id) is None:
            return False
        run = self.rows[tenant, response_id]
        if run.steering.count != steering.count:
            return False
        run.steering = Steering(steering.count + 1, steering.body)
        return True

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        return sum(
            run.ended_at is None
            and not run.by_name
            and run.job.tenant == tenant
            and api_key in (None, run.api_key)
            for run in self.rows.values()
        )

    async def add_webhooks(self, webhooks: Sequence[WebhookEvent]) -> None:
        for webhook in webhooks:
            self._webhooks.setdefault(webhook.id, (webhook, 0))

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        due = [(event, count) for event, count in self._webhooks.values() if event.due_at <= now]
        due.sort(key=lambda pair: pair[0].due_at)
        for event, attempts in due[:limit]:
            self._webhooks[event.id] = (replace(event, due_at=retry_at), attempts + 1)
        return tuple(
            DueWebhook(event.id, event.body, count + 1, event.tenant, event.endpoint)
            for event, count in due[:limit]
        )

    async def settle_webhook(self, event_id: str, retry_at: float | None) -> None:
        event, attempts = self._webhooks.pop(event_id, (None, 0))
        if event is not None and retry_at is not None:
            self._webhooks[event_id] = (replace(event, due_at=retry_at), attempts)

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        run = self.rows.get((claim.job.tenant, claim.job.id))
        return tuple(run.batches) if run is not None else ()

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        run = self.rows.get((tenant, response_id))
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
        if self.rows.pop(key, None) is not None:
            self.locks.remove_holder(*key)
            self.notifications.subscriptions.mark_stale([key])

    def delete_tenant(self, tenant: str) -> int:
        """Delete the runs of a tenant with their webhooks, and its locks and reservations. Return
        the number of the runs."""
        keys = [key for key in self.rows if key[0] == tenant]
        for key in keys:
            self.delete(key)
        kept = {id: each for id, each in self._webhooks.items() if each[0].tenant != tenant}
        self._webhooks = kept
        self.locks.remove_tenant(tenant)
        self.reservations.reserved.pop(tenant, None)
        return len(keys)

    def count_active(self, tenant: str) -> tuple[int, int]:
        """Count the runs of a tenant that have not ended. Return two numbers: how many of these
        runs have no owner (they are queued), and how many have an owner."""
        active = [run for run in self.rows.values() if run.job.tenant == tenant]
        active = [run for run in active if run.ended_at is None]
        queued = sum(run.owner is None for run in active)
        return queued, len(active) - queued

    def has_run(self, key: _Key) -> bool:
        """Return whether the response has a run, ended or not."""
        return key in self.rows

    def is_running(self, key: _Key) -> bool:
        """Return whether the response has an unended run."""
        run = self.rows.get(key)
        return run is not None and run.ended_at is None

    def expire(self, before: int | None, now: int) -> None:
        """Delete the runs that ended before ``before``, with their events. If ``before`` is None,
        delete nothing. Both times are in Unix seconds.

        The store has no clock, so it does not know when a run ended. The time ``now`` of the first
        sweep after the end counts as the time of the end.
        """
        for key, run in list(self.rows.items()):
            if run.ended_at == 0:
                run.ended_at = now
            if run.ended_at is not None and before is not None and run.ended_at < before:
                del self.rows[key]

    # --- private ---------------------------------------------------------------------------------

    def _take(self, run: _Run, owner: str) -> Claim:
        old_owner, run.owner = run.owner, owner
        run.epoch += 1
        run.attempts += 1
        if old_owner:
            self.notifications.notify_lost([(run.job.id, run.epoch)])
        return Claim(job=run.job, epoch=run.epoch, attempts=run.attempts)

    def _claimed_run(self, claim: Claim) -> _Run | None:
        run = self.rows.get((claim.job.tenant, claim.job.id))
        if run is None or run.ended_at is not None or run.epoch != claim.epoch:
            return None
        return run

    def _add_batch(self, run: _Run, batch: EventBatch) -> None:
        if batch.count:
            run.batches += batch.rows
            run.attempts = 0
            self.notifications.subscriptions.publish(
                run.job.tenant, run.job.id, replace(batch, tokens=b"")
            )
