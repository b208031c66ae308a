"""The SQLite run store: event logs with one row per batch, next to the responses.

One process uses the database, so heartbeats are in memory, and owners of an earlier process are
dead.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any, Protocol

from antiphon.store.fair_claims import choose_fairly
from antiphon.store.records import (
    Append,
    Claim,
    ConversationLock,
    DueWebhook,
    EventBatch,
    EventPage,
    Job,
    StoredResponse,
    WebhookEvent,
)
from antiphon.store.row_mapping import claim_of, event_batch_of
from antiphon.store.single_process import SingleProcessRuns
from antiphon.store.usage import UsageRecord

from .database import Database

__all__ = ["SqliteRuns"]

#: Owner of runs that were taken over in order to end them.
_TAKEN_OVER = ""
#: The largest sequence number.
_MAX_SEQUENCE_NUMBER = 2**31 - 1


#: Bytes of events after which a page ends, and from which on a batch is large.
_PAGE_BYTES = _LARGE_BYTES = 1 << 20

#: A claim, and the former owner of the run.
_ClaimedFrom = tuple[Claim, str | None]


class _SaveResponse(Protocol):
    """Returns the work that stores a response."""

    def __call__(
        self,
        tenant: str,
        stored: StoredResponse,
        conversation: str | None = None,
        *,
        expires_at: int | None = None,
        listed: bool = True,
        usage: UsageRecord | None = None,
    ) -> Callable[[sqlite3.Connection], None]: ...


class SqliteRuns(SingleProcessRuns):
    """``RunStore`` over a database. ``save`` makes the work that stores a response."""

    def __init__(self, database: Database, save: _SaveResponse) -> None:
        super().__init__()
        self._database = database
        self._queries = database.queries
        self._save = save

    async def restore_locks(self) -> None:
        """Restore the locks of conversations whose runs an earlier process has not ended."""
        for run in await self._database.rows("running", (), tuple):
            self._locks.restore_run(*run)

    async def create(
        self,
        job: Job,
        stored: StoredResponse,
        batch: EventBatch,
        *,
        lock: ConversationLock | None = None,
        api_key: str = "",
    ) -> bool:
        if lock is not None and not self.is_locked(job.tenant, job.id, lock):
            return False
        save_response = self._save(job.tenant, stored, listed=False)

        def work(connection: sqlite3.Connection) -> None:
            save_response(connection)
            conversation = lock.conversation if lock is not None else None
            row = (job.tenant, job.id, job.model, conversation, api_key)
            run = connection.execute(self._queries["begin_run"], row).lastrowid
            connection.execute(self._queries["add_job"], (run, job.request, job.prompt))
            self._add_batch(connection, run, batch)

        def on_done(done: asyncio.Future[None]) -> None:
            if is_new and (done.cancelled() or done.exception() is not None):
                self._locks.remove_run(job.tenant, job.id)

        is_new = self._locks.add_run(job.tenant, job.id)
        write = self._database.write(work, then=lambda _: self._notify_queued())
        writing = asyncio.ensure_future(write)
        writing.add_done_callback(on_done)
        await asyncio.shield(writing)  # a cancelled caller does not cancel a write
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
        if limit < 1:
            return ()
        self._owners.record(owner)
        is_free = self._owners.free_runs(owner, lease_s, held)

        def work(connection: sqlite3.Connection) -> list[_ClaimedFrom]:
            running, own = Counter[str](), Counter[str]()
            for tenant, response_id, old_owner in connection.execute(self._queries["owned"]):
                running[tenant] += 1
                own[tenant] += old_owner == owner and not is_free(response_id, old_owner)
            tenants = [row[0] for row in connection.execute(self._queries["queued_tenants"])]
            room = None
            if tenant_limit is not None:
                room = {tenant: tenant_limit - own[tenant] for tenant in tenants}
            with ExitStack() as stack:
                sources = {
                    tenant: stack.enter_context(
                        closing(self._queued(connection, tenant, models, is_free))
                    )
                    for tenant in tenants
                }
                chosen = choose_fairly(sources, running, limit=limit, room=room)
            return [(self._take(connection, run, owner), old) for run, old in chosen]

        def notify(claims: list[_ClaimedFrom]) -> None:
            for claim, old_owner in claims:
                self._locks.transfer(claim.job.tenant, claim.job.id, owner)
                self._notify_lost(claim.job.id, claim.epoch, old_owner)

        return tuple(claim for claim, _ in await self._database.write(work, then=notify))

    async def release(self, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["release_runs"], (owner,))

        def notify(_: None) -> None:
            self._locks.release_owner(owner)
            self._notify_queued()

        await self._database.write(work, then=notify)

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        def work(connection: sqlite3.Connection) -> _ClaimedFrom | None:
            row = connection.execute(self._queries["run"], (tenant, response_id)).fetchone()
            if row is None or row[3] is not None:
                return None
            return self._take(connection, row[0], _TAKEN_OVER), row[4]

        def notify(claimed: _ClaimedFrom | None) -> None:
            if claimed is not None:
                claim, old_owner = claimed
                self._notify_lost(claim.job.id, claim.epoch, old_owner)

        self._owners.record(_TAKEN_OVER)
        claimed = await self._database.write(work, then=notify)
        return None if claimed is None else claimed[0]

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        def work(connection: sqlite3.Connection) -> tuple[list[Append], set[str]]:
            appended, lost = [], set()
            for append in appends:
                run = self._claimed_run(connection, append.claim)
                if run is None:
                    lost.add(append.claim.job.id)
                elif append.batch.first >= run[1]:
                    self._add_batch(connection, run[0], append.batch)
                    appended.append(append)
            return appended, lost

        def notify(result: tuple[list[Append], set[str]]) -> None:
            for append in result[0]:
                self._publish(append.claim, append.batch)

        return frozenset((await self._database.write(work, then=notify))[1])

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
        save_response = self._save(
            claim.job.tenant,
            stored,
            conversation,
            expires_at=expires_at,
            listed=stored.response.store,
            usage=usage,
        )

        def work(connection: sqlite3.Connection) -> bool:
            run = self._claimed_run(connection, claim)
            if run is None:
                return False
            self._add_batch(connection, run[0], batch)
            connection.execute(self._queries["end_run"], (run[0],))
            connection.execute(self._queries["drop_job"], (run[0],))
            save_response(connection)
            if webhook is not None:
                row = (webhook.id, webhook.body, webhook.due_at)
                connection.execute(self._queries["add_letter"], row)
            return True

        def notify(ended: bool) -> None:
            if ended:
                self._publish(claim, batch)
                self.remove(claim.job.tenant, claim.job.id)

        return await self._database.write(work, then=notify)

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        ((count,),) = await self._database.rows("count_unended_runs", (tenant, api_key), tuple)
        return int(count)

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        def work(connection: sqlite3.Connection) -> tuple[DueWebhook, ...]:
            rows = connection.execute(self._queries["due_letters"], (now, limit)).fetchall()
            for row in rows:
                connection.execute(self._queries["try_letter"], (retry_at, row[0]))
            return tuple(DueWebhook(name, body, attempts + 1) for name, body, attempts in rows)

        if not await self._database.rows("due_letters", (now, 1), lambda row: row[0]):
            return ()
        return await self._database.write(work)

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        await self._execute("postpone_letter", (until, event_id))

    async def delete_webhook(self, event_id: str) -> None:
        await self._execute("settle_letter", (event_id,))

    async def _execute(self, query: str, arguments: tuple[Any, ...]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries[query], arguments)

        await self._database.write(work)

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        key = (claim.job.tenant, claim.job.id)
        return tuple(await self._database.rows("history", key, event_batch_of))

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        def work(connection: sqlite3.Connection) -> EventPage | None:
            first = min(after + 1, _MAX_SEQUENCE_NUMBER)
            arguments = (first, first, tenant, response_id)
            with closing(connection.execute(self._queries["events"], arguments)) as rows:
                return _page(rows, after, limit)

        return await self._database.read(work)

    # --- called by the store ---------------------------------------------------------------------

    def remove(self, tenant: str, response_id: str) -> None:
        """Release the locks of a run that ended or was deleted, and notify its subscribers."""
        self._locks.remove_holder(tenant, response_id)
        self._subscriptions.mark_stale([(tenant, response_id)])

    # --- private ---------------------------------------------------------------------------------

    def _queued(
        self,
        connection: sqlite3.Connection,
        tenant: str,
        models: Collection[str],
        is_free: Callable[[str, str | None], bool],
    ) -> Generator[tuple[int, tuple[int, str | None]], None, None]:
        """Yield the runs of a tenant that can be claimed: their rank, row and former owner."""
        with closing(connection.execute(self._queries["unended"], (tenant,))) as runs:
            for run, response_id, model, old_owner in runs:
                if model in models and is_free(response_id, old_owner):
                    yield run, (run, old_owner)

    async def _has_ended(self, tenant: str, response_id: str) -> bool:
        rows = await self._database.rows("run", (tenant, response_id), tuple)
        return any(row[3] is not None for row in rows)

    def _take(self, connection: sqlite3.Connection, run: int, owner: str) -> Claim:
        connection.execute(self._queries["take_run"], (owner, run))
        return claim_of(connection.execute(self._queries["claim"], (run,)).fetchone())

    def _claimed_run(self, connection: sqlite3.Connection, claim: Claim) -> tuple[int, int] | None:
        """Return the run's row and next sequence number, if the claim is still valid."""
        key = (claim.job.tenant, claim.job.id)
        row = connection.execute(self._queries["run"], key).fetchone()
        if row is None or row[1] != claim.epoch or row[3] is not None:
            return None
        return row[0], row[2]

    def _add_batch(
        self, connection: sqlite3.Connection, run: int | None, batch: EventBatch
    ) -> None:
        if batch.count:
            for part in batch.rows:
                self._add_row(connection, run, part)
                del part  # or it stays in memory while the next one is made
            connection.execute(self._queries["advance_run"], (batch.last + 1, run))

    def _add_row(self, connection: sqlite3.Connection, run: int | None, batch: EventBatch) -> None:
        columns = {"lines": batch.lines, "tokens": batch.tokens}
        if len(batch.lines) <= _LARGE_BYTES:
            row = (run, batch.first, batch.count, *columns.values())
            connection.execute(self._queries["add_batch"], row)
            return
        # Written in place: SQLite makes two copies of a value that it is given.
        sizes = map(len, columns.values())
        row = (run, batch.first, batch.count, *sizes)
        row_id = connection.execute(self._queries["add_large_batch"], row).lastrowid
        for name, value in columns.items():
            if value and row_id is not None:
                with connection.blobopen("batches", name, row_id) as blob:
                    blob.write(value)

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        if batch.count:
            self._subscriptions.publish(claim.job.tenant, claim.job.id, batch)


def _page(rows: Iterable[tuple[Any, ...]], after: int, limit: int) -> EventPage | None:
    """Make a page of rows (ended, first, count, lines), reading no more rows than necessary."""
    batches: list[EventBatch] = []
    has_ended = None
    size = 0
    for ended, first, count, lines in rows:
        has_ended = bool(ended)
        if first is None or first + count - 1 <= after:
            continue
        if first > after + limit:  # sequence numbers have no gaps
            return EventPage(tuple(batches), ended=False)
        batches.append(EventBatch(first=first, count=count, lines=lines))
        size += len(lines)
        if size > _PAGE_BYTES:
            return EventPage(tuple(batches), ended=False)
    return None if has_ended is None else EventPage(tuple(batches), ended=has_ended)
