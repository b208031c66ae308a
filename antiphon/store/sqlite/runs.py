"""The SQLite run store: runs and their event logs, leases, conversation locks and reservations.

The database has tables for the heartbeats of processes, the locks of conversations, and the
reservations (room reserved in a tenant's quota for unfinished responses). An operation that depends
on these tables, such as a claim, reads and writes them in the same transaction as the runs and
responses. Times are measured by the machine's monotonic clock, which is the same for all processes.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from antiphon.store.common.claims import Rank, choose_fairly, free_runs
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    EventBatch,
    EventPage,
    NewRun,
    RunEnd,
)
from antiphon.store.sql.executor import first, index_key
from antiphon.store.sql.row_mapping import batch_row, claim_of
from antiphon.store.sql.runs import MAX_SEQUENCE_NUMBER, PAGE_BYTES, PrepareSave, SqlRuns

from .database import Database
from .executor import SqliteExecutor, SqliteTransaction
from .peer_notifications import PeerNotifications

#: A claim, and the former owner of the run.
_ClaimedFrom = tuple[Claim, str | None]
#: Whether a run may be claimed. The arguments are its id and its present owner.
_IsFree = Callable[[str, str | None], bool]


class _Run(NamedTuple):
    """The columns that the query "run" reads."""

    seq: int
    epoch: int
    next: int
    ended_at: int | None
    owner: str | None
    steering_count: int


class SqliteRuns(SqlRuns[SqliteTransaction]):
    """The runs in an SQLite database. ``folder``: the folder with the sockets of the processes that
    share the database; None if only this process uses it."""

    _executor: SqliteExecutor

    def __init__(
        self,
        database: Database,
        prepare_save: PrepareSave[SqliteTransaction],
        folder: Path | None,
    ) -> None:
        super().__init__(SqliteExecutor(database), prepare_save)
        self._database = database
        #: Number of bytes of lines above which they are read and written in place.
        self._large_bytes = sys.maxsize if database.is_encrypted else PAGE_BYTES
        self.notifications = PeerNotifications(folder)

    # --- claims and leases -----------------------------------------------------------------------

    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        if query.limit < 1:
            return ()

        def work(transaction: SqliteTransaction) -> list[_ClaimedFrom]:
            record_heartbeat(transaction, query.owner)
            chosen = _choose(transaction, query, _free_runs(transaction, query))
            claims = [(_take(transaction, run, query.owner), old) for run, old in chosen]
            for claim, _ in claims:
                row = (query.owner, claim.job.tenant, claim.job.id)
                transaction.execute("transfer_locks", *row)
            return claims

        return await self._take_runs(work)

    async def _take_runs(
        self, work: Callable[[SqliteTransaction], list[_ClaimedFrom]]
    ) -> tuple[Claim, ...]:
        """Claim runs, and tell the other processes which ones."""

        def notify(claimed: list[_ClaimedFrom]) -> None:
            lost = [(claim.job.id, claim.epoch) for claim, old_owner in claimed if old_owner]
            self.notifications.on_claimed([claim for claim, _ in claimed], lost)

        return tuple(claim for claim, _ in await self._executor.apply(work, then=notify))

    async def heartbeat(self, query: ClaimQuery) -> bool:
        def work(transaction: SqliteTransaction) -> bool:
            record_heartbeat(transaction, query.owner)
            transaction.execute("drop_start_by", query.now)
            is_free = _free_runs(transaction, query)
            with closing(transaction.execute("all_unended_runs")) as runs:
                return any(
                    query.finds(name, model, by_name=by_name) and is_free(name, owner)
                    for name, model, by_name, owner in runs
                )

        return await self._executor.apply(work)

    async def release(self, owner: str) -> None:
        def work(transaction: SqliteTransaction) -> None:
            for name in ("release_runs", "release_locks", "forget_owner"):
                transaction.execute(name, owner)

        await self._executor.apply(work, then=lambda _: self.notifications.on_released())

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        def work(transaction: SqliteTransaction) -> list[_ClaimedFrom]:
            run = _find(transaction, tenant, response_id)
            if run is None or run.ended_at is not None:
                return []
            record_heartbeat(transaction, owner := _takeover_owner(run.seq))
            return [(_take(transaction, run.seq, owner), run.owner)]

        return first(await self._take_runs(work))

    # --- events ----------------------------------------------------------------------------------

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        def work(transaction: SqliteTransaction) -> tuple[list[Append], set[str]]:
            appended, lost = [], set()
            for append in appends:
                run = _claimed(transaction, append.claim)
                if run is None:
                    lost.add(append.claim.job.id)
                elif append.batch.first >= run.next:
                    self._add(transaction, run.seq, append.batch)
                    appended.append(append)
            return appended, lost

        def notify(result: tuple[list[Append], set[str]]) -> None:
            for append in result[0]:
                self._publish(append.claim, append.batch)

        return frozenset((await self._executor.apply(work, then=notify))[1])

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        query = self._database.queries["events"]

        def work(connection: sqlite3.Connection) -> EventPage | None:
            start = min(after + 1, MAX_SEQUENCE_NUMBER)
            arguments = (self._large_bytes, start, start, tenant, response_id)
            with closing(connection.execute(query, arguments)) as rows:
                return _page_of(connection, rows, after, limit)

        return await self._database.read(work)

    async def _add_batch(self, transaction: SqliteTransaction, run: int, batch: EventBatch) -> None:
        self._add(transaction, run, batch)

    def _add(self, transaction: SqliteTransaction, run: int, batch: EventBatch) -> None:
        if batch.count:
            for part in batch.rows:
                self._add_row(transaction, run, part)
                del part  # otherwise it stays in memory while the next part is made
            transaction.execute("advance_run", batch.last + 1, run)

    def _add_row(self, transaction: SqliteTransaction, run: int, batch: EventBatch) -> None:
        if len(batch.lines) <= self._large_bytes:
            transaction.execute("add_batch", run, *batch_row(batch))
            return
        # Written in place, because SQLite makes two copies of a value that it gets as an argument.
        columns = {"lines": batch.lines, "tokens": batch.tokens}
        sizes = map(len, columns.values())
        row = (run, batch.first, batch.count, *sizes, batch.at)
        row_id = transaction.execute("add_large_batch", *row).lastrowid or 0
        for name, value in columns.items():
            if value:
                with transaction.connection.blobopen("batches", name, row_id) as blob:
                    blob.write(value)

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        """Deliver a committed batch of events to the subscribers of its run."""
        if batch.count:
            self.notifications.on_appended(claim.job.tenant, claim.job.id, batch)

    # --- creation and end ------------------------------------------------------------------------

    async def _begin(self, transaction: SqliteTransaction, run: NewRun) -> None:
        job, lock = run.job, run.lock
        conversation = index_key(lock.conversation) if lock is not None else None
        name = (job.tenant, job.id, job.model)
        row = (*name, conversation, run.api_key, run.by_name, run.start_by)
        number = transaction.execute("begin_run", *row).lastrowid or 0
        transaction.execute("add_job", number, job.request, job.prompt)
        self._add(transaction, number, run.batch)

    async def _end(self, transaction: SqliteTransaction, claim: Claim, end: RunEnd) -> int | None:
        run = _claimed(transaction, claim)
        if run is None or run.steering_count != end.steering_count:
            return None
        transaction.execute("end_run", run.seq)
        transaction.execute("drop_job", run.seq)
        if run.owner == _takeover_owner(run.seq):
            transaction.execute("forget_owner", run.owner)
        return run.seq

    def _on_created(self, run: NewRun) -> None:
        self.notifications.on_created(run.job.id)

    def _on_ended(self, claim: Claim, end: RunEnd) -> None:
        self._publish(claim, end.batch)
        self.notifications.on_run_ended(claim.job.tenant, claim.job.id)

    # --- conversation locks ----------------------------------------------------------------------

    async def lock_conversation(
        self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float
    ) -> bool:
        key = (tenant, index_key(lock.conversation))

        def work(transaction: SqliteTransaction) -> bool:
            run = _find(transaction, tenant, holder)
            if run is not None and run.ended_at is not None:
                return False
            for current, owner in transaction.execute("lock_holder", *key).fetchall():
                if current != holder:
                    other = _find(transaction, tenant, current)
                    is_active = other is not None and other.ended_at is None
                    if is_active or owner in _living_owners(transaction, lease_s):
                        return False
            transaction.execute("put_lock", *key, holder, lock.owner)
            record_heartbeat(transaction, lock.owner)
            return True

        return await self._executor.apply(work)

    async def has_lock(
        self,
        transaction: SqliteTransaction,
        tenant: str,
        holder: str,
        lock: ConversationLock,
        *,
        for_run: bool = False,
    ) -> bool:
        key = (tenant, index_key(lock.conversation))
        return transaction.execute("lock_holder", *key).fetchall() == [(holder, lock.owner)]


def _takeover_owner(run: int) -> str:
    """Return the owner of a run that was taken over in order to end it."""
    return f"takes over {run}"


def record_heartbeat(transaction: SqliteTransaction, owner: str) -> None:
    """Record that an owner is alive."""
    transaction.execute("heartbeat", owner, time.monotonic())


def oldest_heartbeat(lease_s: float) -> float:
    """Return the time of the machine's clock after which an owner must have sent a heartbeat."""
    return time.monotonic() - lease_s


def _living_owners(transaction: SqliteTransaction, lease_s: float) -> frozenset[str]:
    rows = transaction.execute("live_owners", oldest_heartbeat(lease_s))
    return frozenset(row[0] for row in rows)


def _free_runs(transaction: SqliteTransaction, query: ClaimQuery) -> _IsFree:
    return free_runs(query.owner, _living_owners(transaction, query.lease_s), query.held)


def _find(transaction: SqliteTransaction, tenant: str, response_id: str) -> _Run | None:
    row = transaction.execute("run", tenant, response_id).fetchone()
    return None if row is None else _Run._make(row)


def _claimed(transaction: SqliteTransaction, claim: Claim) -> _Run | None:
    """Return a claimed run, or None if the claim is no longer valid."""
    run = _find(transaction, claim.job.tenant, claim.job.id)
    return run if run and run.epoch == claim.epoch and run.ended_at is None else None


def _take(transaction: SqliteTransaction, run: int, owner: str) -> Claim:
    transaction.execute("take_over_run", owner, run)
    return claim_of(transaction.execute("claim", run).fetchone())


def _choose(
    transaction: SqliteTransaction, query: ClaimQuery, is_free: _IsFree
) -> list[tuple[int, str | None]]:
    """Choose the runs to claim, each with its row number and its former owner."""
    running, own = Counter[str](), Counter[str]()
    for tenant, response_id, old_owner in transaction.execute("owned_runs"):
        running[tenant] += 1
        own[tenant] += old_owner == query.owner and not is_free(response_id, old_owner)
    tenants = [row[0] for row in transaction.execute("queued_tenants")]
    room = None
    if query.tenant_limit is not None:
        room = {tenant: query.tenant_limit - own[tenant] for tenant in tenants}
    with ExitStack() as stack:
        sources = {
            tenant: stack.enter_context(closing(_queued(transaction, tenant, query, is_free)))
            for tenant in tenants
        }
        return choose_fairly(sources, running, limit=query.limit, room=room)


def _queued(
    transaction: SqliteTransaction, tenant: str, query: ClaimQuery, is_free: _IsFree
) -> Generator[tuple[Rank, tuple[int, str | None]], None, None]:
    """Yield the runs of a tenant that can be claimed, in the order and the form that
    ``choose_fairly`` expects: ``(rank, (row, owner))``, with the former owner."""
    with closing(transaction.execute("unended_runs", tenant)) as runs:
        for run, response_id, model, by_name, old_owner, start_by in runs:
            is_wanted = query.finds(response_id, model, by_name=by_name)
            if is_wanted and is_free(response_id, old_owner):
                yield (start_by, run), (run, old_owner)


def _page_of(
    connection: sqlite3.Connection, rows: sqlite3.Cursor, after: int, limit: int
) -> EventPage | None:
    """Make a page of the events after sequence number ``after``. Returns None if there are no rows.

    ``rows``: one row for each batch of events, with the columns ``ended``, ``first``, ``count``,
    ``rowid`` and ``lines``. For a large batch, ``lines`` is None, and the lines are read
    separately. ``limit``: as in ``RunStore.events``. No more rows are read than necessary.
    """
    batches: list[EventBatch] = []
    has_ended = None
    size = 0
    for ended, start, count, row_id, lines in rows:
        has_ended = bool(ended)
        if start is None or start + count - 1 <= after:
            continue
        if start > after + limit:  # sequence numbers have no gaps
            return EventPage(tuple(batches), ended=False)
        if lines is None:  # SQLite makes a copy of a value that it returns
            with connection.blobopen("batches", "lines", row_id, readonly=True) as blob:
                lines = blob.read()
        batches.append(EventBatch(first=start, count=count, lines=lines))
        size += len(lines)
        if size > PAGE_BYTES:
            return EventPage(tuple(batches), ended=False)
    return None if has_ended is None else EventPage(tuple(batches), ended=has_ended)
