"""The SQLite run store: runs and their event logs, leases, conversation locks and reservations.

The database has tables for the heartbeats of processes, the locks of conversations, and the
reservations (room reserved in a tenant's quota for unfinished responses). An operation that depends
on these tables, such as a claim, reads and writes them in the same transaction as the runs and
responses. Times are measured by the machine's monotonic clock, which is the same for all processes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from antiphon.store.common.claims import free_runs
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    EventBatch,
    EventPage,
    NewRun,
    Reservation,
    RunEnd,
    exceeds,
)
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.runs import PrepareSave, SqlRuns

from .database import Database
from .executor import SqliteExecutor, SqliteTransaction
from .peer_notifications import PeerNotifications
from .run_tables import ClaimedFrom, RunTables, page_of

#: The largest sequence number.
_MAX_SEQUENCE_NUMBER = 2**31 - 1
#: Owner of runs that were taken over in order to end them.
_TAKEOVER_OWNER = ""


class SqliteRuns(SqlRuns[SqliteTransaction]):
    """The runs in an SQLite database. ``folder``: the folder with the sockets of the processes that
    share the database; None if only this process uses it."""

    def __init__(
        self,
        database: Database,
        prepare_save: PrepareSave[SqliteTransaction],
        folder: Path | None,
    ) -> None:
        super().__init__(SqliteExecutor(database), prepare_save)
        self._database = database
        self._queries = database.queries
        self._tables = RunTables(database.queries, is_encrypted=database.is_encrypted)
        self.notifications = PeerNotifications(folder)

    async def open(self) -> None:
        """Connect to the other processes."""
        await self.notifications.open()

    async def close(self) -> None:
        """Close the connections to the other processes."""
        await self.notifications.close()

    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        if query.limit < 1:
            return ()

        def work(connection: sqlite3.Connection) -> list[ClaimedFrom]:
            self._record_heartbeat(connection, query.owner)
            claims = self._tables.claim(connection, query, self._free_runs(connection, query))
            for claim, _ in claims:
                row = (query.owner, claim.job.tenant, claim.job.id)
                connection.execute(self._queries["transfer_locks"], row)
            return claims

        def notify(claims: list[ClaimedFrom]) -> None:
            lost = [(claim.job.id, claim.epoch) for claim, old_owner in claims if old_owner]
            self.notifications.on_claimed([claim for claim, _ in claims], lost)

        return tuple(claim for claim, _ in await self._database.write(work, then=notify))

    async def heartbeat(self, query: ClaimQuery) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            self._record_heartbeat(connection, query.owner)
            connection.execute(self._queries["drop_start_by"], (query.now,))
            is_free = self._free_runs(connection, query)
            return self._tables.has_free_run(connection, query, is_free)

        return await self._database.write(work)

    async def release(self, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["release_runs"], (owner,))
            connection.execute(self._queries["release_locks"], (owner,))
            connection.execute(self._queries["forget_owner"], (owner,))

        await self._database.write(work, then=lambda _: self.notifications.on_released())

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        def work(connection: sqlite3.Connection) -> ClaimedFrom | None:
            self._record_heartbeat(connection, _TAKEOVER_OWNER)
            return self._tables.take_over(connection, tenant, response_id, _TAKEOVER_OWNER)

        def notify(claimed: ClaimedFrom | None) -> None:
            if claimed is not None:
                claim, old_owner = claimed
                lost = [(claim.job.id, claim.epoch)] if old_owner else []
                self.notifications.on_claimed([claim], lost)

        claimed = await self._database.write(work, then=notify)
        return None if claimed is None else claimed[0]

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        def work(connection: sqlite3.Connection) -> tuple[list[Append], set[str]]:
            appended, lost = [], set()
            for append in appends:
                run = self._tables.claimed_run(connection, append.claim)
                if run is None:
                    lost.add(append.claim.job.id)
                elif append.batch.first >= run[1]:
                    self._tables.add_batch(connection, run[0], append.batch)
                    appended.append(append)
            return appended, lost

        def notify(result: tuple[list[Append], set[str]]) -> None:
            for append in result[0]:
                self._publish(append.claim, append.batch)

        return frozenset((await self._database.write(work, then=notify))[1])

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        def work(connection: sqlite3.Connection) -> EventPage | None:
            first = min(after + 1, _MAX_SEQUENCE_NUMBER)
            arguments = (self._tables.large_bytes, first, first, tenant, response_id)
            with closing(connection.execute(self._queries["events"], arguments)) as rows:
                return page_of(connection, rows, after, limit)

        return await self._database.read(work)

    async def lock_conversation(
        self, tenant: str, holder: str, lock: ConversationLock, *, lease_s: float
    ) -> bool:
        key = (tenant, index_key(lock.conversation))

        def work(connection: sqlite3.Connection) -> bool:
            if self._run_has_ended(connection, tenant, holder) is True:
                return False
            row = connection.execute(self._queries["lock_holder"], key).fetchone()
            if row is not None and row[0] != holder:
                is_active = self._run_has_ended(connection, tenant, row[0]) is False
                if is_active or row[1] in self._living_owners(connection, lease_s):
                    return False
            connection.execute(self._queries["put_lock"], (*key, holder, lock.owner))
            self._record_heartbeat(connection, lock.owner)
            return True

        return await self._database.write(work)

    # --- called by the store ---------------------------------------------------------------------

    async def reserve_response(self, reservation: Reservation) -> bool:
        """See ``Store.reserve_response``."""
        tenant, owner = reservation.tenant, reservation.owner
        key = (tenant, index_key(reservation.response_id))

        def work(connection: sqlite3.Connection) -> bool:
            self._record_heartbeat(connection, owner)
            former = connection.execute(self._queries["reserving_owner"], key).fetchone()
            oldest = time.monotonic() - reservation.lease_s
            connection.execute(self._queries["drop_dead_reservations"], (tenant, oldest))
            connection.execute(self._queries["put_reservation"], (*key, owner))
            query = self._queries["stored_totals"]
            count, stored_bytes = connection.execute(query, (tenant,)).fetchone()
            query = self._queries["count_reservations"]
            (unsaved,) = connection.execute(query, (tenant,)).fetchone()
            if not (
                exceeds(count + unsaved, reservation.max_responses)
                or exceeds(stored_bytes + 1, reservation.max_bytes)
            ):
                return True
            if former is None:
                connection.execute(self._queries["release_reservation"], (*key, owner))
            else:
                connection.execute(self._queries["put_reservation"], (*key, former[0]))
            return False

        return await self._database.write(work)

    def forget(self, connection: sqlite3.Connection, tenant: str, response_id: str) -> None:
        """Delete the conversation locks of a run that has ended or was deleted. Called within the
        transaction that ends or deletes the run."""
        connection.execute(self._queries["drop_locks"], (tenant, response_id))

    def remove(self, tenant: str, response_id: str) -> None:
        """Notify the subscribers of a run that the run has ended or was deleted. Called after the
        transaction that ended or deleted the run."""
        self.notifications.on_run_ended(tenant, response_id)

    def _on_created(self, run: NewRun) -> None:
        self.notifications.on_created(run.job.id)

    def _on_ended(self, claim: Claim, end: RunEnd) -> None:
        self._publish(claim, end.batch)
        self.remove(claim.job.tenant, claim.job.id)

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        """Deliver a committed batch of events to the subscribers of its run."""
        if batch.count:
            self.notifications.on_appended(claim.job.tenant, claim.job.id, batch)

    # --- within a transaction --------------------------------------------------------------------

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
        return await transaction.rows("lock_holder", *key) == [(holder, lock.owner)]

    async def _begin(self, transaction: SqliteTransaction, run: NewRun) -> None:
        self._tables.begin(transaction.connection, run)

    async def _end(self, transaction: SqliteTransaction, claim: Claim, end: RunEnd) -> int | None:
        return self._tables.end(transaction.connection, claim, end)

    async def _add_batch(self, transaction: SqliteTransaction, run: int, batch: EventBatch) -> None:
        self._tables.add_batch(transaction.connection, run, batch)

    def _record_heartbeat(self, connection: sqlite3.Connection, owner: str) -> None:
        connection.execute(self._queries["heartbeat"], (owner, time.monotonic()))

    def _free_runs(
        self, connection: sqlite3.Connection, query: ClaimQuery
    ) -> Callable[[str, str | None], bool]:
        """Return a function that tells whether the owner of ``query`` may claim a run; see
        ``free_runs``."""
        return free_runs(query.owner, self._living_owners(connection, query.lease_s), query.held)

    def _living_owners(self, connection: sqlite3.Connection, lease_s: float) -> frozenset[str]:
        since = (time.monotonic() - lease_s,)
        return frozenset(row[0] for row in connection.execute(self._queries["live_owners"], since))

    def _run_has_ended(
        self, connection: sqlite3.Connection, tenant: str, response_id: str
    ) -> bool | None:
        """Return whether the run of a response has ended. Returns None if the response has no
        run."""
        row = connection.execute(self._queries["run"], (tenant, response_id)).fetchone()
        return None if row is None else row[3] is not None
