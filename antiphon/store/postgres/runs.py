"""The run store in PostgreSQL. It contains the claims and the event logs of runs, and notifies
processes of changes. Many processes can share it.

A process follows a run if it has readers of the run. A process that appends batches of events
delivers them to the readers in this process. It also sends them to the other processes that follow
the run. The database's clock decides which owners are alive.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from antiphon.store.common.claimable_runs import Notice
from antiphon.store.postgres.bus import BusConnection
from antiphon.store.postgres.notifications.listener import RunNotifications, encode_notice
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    EventPage,
    NewRun,
    RunEnd,
)
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import batch_row, claim_of, event_batch_of
from antiphon.store.sql.runs import MAX_SEQUENCE_NUMBER, PAGE_BYTES, PrepareSave, SqlRuns

from .pool import ConnectionPool, Transaction

#: Shortest and longest wait, in seconds, before the next attempt to claim runs that were locked.
_LOCKED_WAIT_S, _LOCKED_WAIT_MAX_S = 0.02, 1.0

#: The other processes that follow each run, by the row and the epoch of its claim. A claim that is
#: not valid is missing.
_Followers = Mapping[tuple[int, int], Sequence[str]]


class PostgresRuns(SqlRuns[Transaction]):
    """The runs in PostgreSQL."""

    def __init__(
        self,
        pool: ConnectionPool,
        prepare_save: PrepareSave[Transaction],
        bus: BusConnection | None = None,
    ) -> None:
        super().__init__(pool, prepare_save)
        self._pool = pool
        self._process_id = secrets.token_hex(6)
        self.notifications = RunNotifications(pool, self._process_id, bus)
        self._claim_timer: asyncio.TimerHandle | None = None
        self._locked_wait_s = _LOCKED_WAIT_S

    async def _begin(self, transaction: Transaction, run: NewRun) -> None:
        """Add a run with its first events."""
        job = run.job
        columns = (*astuple(job), run.api_key, run.by_name, run.start_by)
        row = await transaction.value("begin_run", *columns)
        await self._add_batch(transaction, row, run.batch)
        await self._notify(transaction, queued_runs=(job.id,))

    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        if query.limit < 1:
            return ()
        async with self._pool.transaction() as transaction:
            rows = await transaction.rows(
                "claim",
                query.owner,
                list(query.models),
                query.limit,
                query.lease_s,
                None if query.held is None else list(query.held),
                query.tenant_limit,
                query.name,
            )
            candidates = rows[0][-1]
            claimed = [
                (claim_of(columns), old_owner)
                for *columns, old_owner, _ in rows
                if columns[1] is not None
            ]
            claims = tuple(claim for claim, _ in claimed)
            lost = [(claim.job.id, claim.epoch) for claim, old_owner in claimed if old_owner]
            if lost:
                await self._notify(transaction, lost_runs=tuple(lost))
        self.notifications.publish_claimed([claim.job.id for claim in claims])
        self.notifications.notify_lost(lost)
        # Other processes had locked the other candidates: to claim them, or only for a moment, to
        # mark that they follow them.
        self._claim_again(are_locked=len(claims) < min(query.limit, candidates))
        return claims

    def _claim_again(self, *, are_locked: bool) -> None:
        """Schedule another claim if the last claim skipped runs because other processes had locked
        their rows (``are_locked``). As long as claims skip runs, each wait is longer than the
        previous wait, because a process that hangs may hold a lock for a long time."""
        if not are_locked:
            self._locked_wait_s = _LOCKED_WAIT_S
        elif self._claim_timer is None:
            loop = asyncio.get_running_loop()
            self._claim_timer = loop.call_later(self._locked_wait_s, self._on_claim_timer)
            self._locked_wait_s = min(2 * self._locked_wait_s, _LOCKED_WAIT_MAX_S)

    def _on_claim_timer(self) -> None:
        self._claim_timer = None
        self.notifications.notify_queued()

    async def heartbeat(self, query: ClaimQuery) -> bool:
        held = None if query.held is None else list(query.held)
        row = (query.owner, list(query.models), query.lease_s, held, query.name, query.now)
        ((has_free_run,),) = await self._pool.rows("heartbeat", *row)
        return bool(has_free_run)

    async def release(self, owner: str) -> None:
        async with self._pool.transaction() as transaction:
            await transaction.rows("release", owner)
            await self._notify(transaction, has_released_runs=True)
        self.notifications.notify_queued()

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        async with self._pool.transaction() as transaction:
            rows = await transaction.rows("take_over_run", tenant, index_key(response_id))
            if not rows:
                return None
            claim = claim_of(rows[0])
            lost = ((claim.job.id, claim.epoch),)
            await self._notify(transaction, lost_runs=lost)
        self.notifications.notify_lost(lost)
        return claim

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        return await self._pool.run_to_completion(self._append(appends)) if appends else frozenset()

    async def _append(self, appends: Sequence[Append]) -> frozenset[str]:
        if len(appends) == 1 and not appends[0].batch.parts:
            followers = await self._store_batch(appends[0])
        else:
            followers = await self._store_batches(appends)
        lost = set()
        for append in appends:
            job, row = append.claim.job, append.claim.row
            process_ids = followers.get((row, append.claim.epoch))
            if process_ids is None:
                lost.add(job.id)
                continue
            self.notifications.publish_local(job.tenant, job.id, append.batch)
            for process_id in process_ids:
                self.notifications.publish_to(process_id, row, append.batch)
        return frozenset(lost)

    async def _store_batch(self, append: Append) -> _Followers:
        """Store a batch without parts as one row of the database. Return the other processes that
        follow the run."""
        claim = append.claim
        rows = await self._pool.rows(
            "append_one", self._process_id, claim.row, claim.epoch, *batch_row(append.batch)
        )
        return {(claim.row, claim.epoch): rows[0][0] or ()} if rows else {}

    async def _store_batches(self, appends: Sequence[Append]) -> _Followers:
        claims = sorted({(append.claim.row, append.claim.epoch) for append in appends})
        places = {claim: place for place, claim in enumerate(claims, 1)}
        parts = [
            (places[append.claim.row, append.claim.epoch], *batch_row(part))
            for append in appends
            for part in append.batch.rows
        ]
        rows = await self._pool.rows(
            "append", self._process_id, *zip(*claims, strict=True), *zip(*parts, strict=True)
        )
        ((valid_places, followed_places, process_ids),) = rows
        followers: dict[tuple[int, int], list[str]] = {
            claims[place - 1]: [] for place in valid_places
        }
        for place, process_id in zip(followed_places or (), process_ids or (), strict=True):
            followers[claims[place - 1]].append(process_id)
        return followers

    async def _end(self, transaction: Transaction, claim: Claim, end: RunEnd) -> int | None:
        columns = (claim.job.tenant, claim.job.id, claim.epoch, end.steering_count)
        row: int | None = await transaction.value("end_run", *columns)
        return row

    def _on_created(self, run: NewRun) -> None:
        self.notifications.notify_queued()

    def _on_ended(self, claim: Claim, end: RunEnd) -> None:
        if end.batch.count:
            self.notifications.publish_local(claim.job.tenant, claim.job.id, end.batch)
        self.mark_stale(claim.job.tenant, claim.job.id)

    def _on_not_ended(self, claim: Claim) -> None:
        # Perhaps this process ended it, but the answer was lost.
        self.mark_stale(claim.job.tenant, claim.job.id)

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        # Sequence numbers have no gaps, so ``after + limit`` is the number of the last event.
        first, last = (min(number, MAX_SEQUENCE_NUMBER) for number in (after + 1, after + limit))
        key = (tenant, index_key(response_id))
        rows = await self._pool.rows("events", *key, first, last, PAGE_BYTES)
        if not rows:
            return None
        batches = tuple(event_batch_of(row[1:]) for row in rows if row[1] is not None)
        return EventPage(batches, ended=rows[0][0])

    async def lock_conversation(
        self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float
    ) -> bool:
        row = (tenant, index_key(lock.conversation), holder, lock.owner, lease_s)
        return bool(await self._pool.rows("lock_conversation", *row))

    async def close(self) -> None:
        """Stop the notifications."""
        if self._claim_timer is not None:
            self._claim_timer.cancel()
        await self.notifications.close()

    async def has_lock(
        self,
        transaction: Transaction,
        tenant: str,
        holder: str,
        lock: ConversationLock,
        *,
        for_run: bool = False,
    ) -> bool:
        row = (tenant, index_key(lock.conversation), holder, lock.owner, for_run)
        return bool(await transaction.rows("confirm_lock", *row))

    # --- notifications ---------------------------------------------------------------------------

    async def announce_end(self, transaction: Transaction, tenant: str, response_id: str) -> None:
        await self._notify(transaction, ended_runs=((tenant, response_id),))

    def mark_stale(self, tenant: str, response_id: str) -> None:
        """Mark this process's subscriptions to a run as stale, because the run has ended or was
        deleted. The readers of the run then read the store."""
        self.notifications.subscriptions.mark_stale([(tenant, response_id)])

    async def _notify(self, transaction: Transaction, **changes: Any) -> None:
        """Send a notice with these fields of ``Notice`` when the transaction commits."""
        notice = encode_notice(Notice(sender=self._process_id, **changes))
        await transaction.rows("notify", notice)
