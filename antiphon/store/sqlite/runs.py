"""The SQLite run store for one process. The event logs are in the same database as the responses.
Each batch of events has one row.

The heartbeats of owners, the locks of conversations and the reservations are kept only in memory.
So after a restart, all owners of runs and locks from before the restart count as dead.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Sequence

from antiphon.store.common.reservations import exceeds
from antiphon.store.common.row_mapping import encode
from antiphon.store.common.single_process import SingleProcessRuns
from antiphon.store.records import (
    Claim,
    ConversationLock,
    EventBatch,
    Job,
    RunLimit,
    StoredResponse,
)
from antiphon.store.runs import RunLimitReached

from .database import Database
from .event_logs import SaveResponse, SqliteEventLogs
from .run_tables import ClaimedFrom

__all__ = ["TAKEOVER_OWNER", "SqliteRuns"]

#: Owner of runs that were taken over in order to end them.
TAKEOVER_OWNER = ""


class SqliteRuns(SqliteEventLogs, SingleProcessRuns):
    """Implements ``RunStore`` with a database that only this process uses. ``save``: returns a
    function that stores a response; see ``SaveResponse``."""

    def __init__(self, database: Database, save: SaveResponse) -> None:
        SqliteEventLogs.__init__(self, database, save)
        SingleProcessRuns.__init__(self)

    async def open(self) -> None:
        """Restore the conversation locks of the runs that an earlier process has not ended."""
        for run in await self._database.rows("running", (), tuple):
            self._locks.restore_run(*run)

    async def close(self) -> None:
        """Do nothing: a store of one process has no connections to other processes."""

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
        if lock is not None and not self.is_locked(job.tenant, job.id, lock):
            return False
        save_response = self._save(job.tenant, stored, listed=False)

        def work(connection: sqlite3.Connection) -> RunLimit | None:
            if (limit := self._tables.find_reached_limit(connection, job.tenant, limits)) is None:
                save_response(connection)
                self._tables.begin(connection, job, batch, lock=lock, api_key=api_key)
            return limit

        def on_done(done: asyncio.Future[RunLimit | None]) -> None:
            is_refused = done.cancelled() or done.exception() or done.result()
            if is_new and is_refused:
                self._locks.remove_run(job.tenant, job.id)

        is_new = self._locks.add_run(job.tenant, job.id)
        write = self._database.write(work, then=lambda _: self._notify_queued())
        writing = asyncio.ensure_future(write)
        writing.add_done_callback(on_done)
        limit = await asyncio.shield(writing)  # a cancelled caller does not cancel a write
        if limit is not None:
            raise RunLimitReached(limit)
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

        def work(connection: sqlite3.Connection) -> list[ClaimedFrom]:
            return self._tables.claim(
                connection, owner, models, is_free, limit=limit, tenant_limit=tenant_limit
            )

        def notify(claims: list[ClaimedFrom]) -> None:
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
        def work(connection: sqlite3.Connection) -> ClaimedFrom | None:
            return self._tables.take_over(connection, tenant, response_id, TAKEOVER_OWNER)

        def notify(claimed: ClaimedFrom | None) -> None:
            if claimed is not None:
                claim, old_owner = claimed
                self._notify_lost(claim.job.id, claim.epoch, old_owner)

        self._owners.record(TAKEOVER_OWNER)
        claimed = await self._database.write(work, then=notify)
        return None if claimed is None else claimed[0]

    async def _has_free_run(
        self, models: Collection[str], is_free: Callable[[str, str | None], bool]
    ) -> bool:
        return await self._database.read(
            lambda connection: self._tables.has_free_run(connection, models, is_free)
        )

    # --- called by the store ---------------------------------------------------------------------

    def lock_check(
        self, tenant: str, holder: str, lock: ConversationLock
    ) -> Callable[[sqlite3.Connection], bool]:
        """Return a function that tells whether the response ``holder`` has this conversation lock.
        The function must be called within a transaction (``Database.write``)."""
        is_locked = self.is_locked(tenant, holder, lock)
        return lambda connection: is_locked

    async def reserve_response(
        self,
        tenant: str,
        response_id: str,
        owner: str,
        *,
        max_responses: int | None,
        max_bytes: int | None,
        lease_s: float,
    ) -> bool:
        """See ``Store.reserve_response``."""
        reservations = self.reservations
        # Reserve first: then concurrent calls count each other's reservations.
        undo = reservations.add(tenant, response_id, owner)
        reserved = encode(reservations.ids(tenant, lease_s)).decode()

        def work(connection: sqlite3.Connection) -> bool:
            query = self._queries["response_totals"]
            count, stored_bytes = connection.execute(query, (tenant,)).fetchone()
            query = self._queries["unsaved_reservations"]
            (unsaved,) = connection.execute(query, (tenant, reserved)).fetchone()
            return not (
                exceeds(count + unsaved, max_responses) or exceeds(stored_bytes + 1, max_bytes)
            )

        try:
            fits = await self._database.read(work)
        except BaseException:
            undo()
            raise
        if not fits:
            undo()
        return fits

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        """See ``Store.release_reservation``."""
        self.reservations.remove(tenant, response_id, owner)

    def remove(self, tenant: str, response_id: str) -> None:
        """Release the conversation lock of a run that has ended or was deleted, and notify the
        subscribers of the run."""
        self._locks.remove_holder(tenant, response_id)
        self._subscriptions.mark_stale([(tenant, response_id)])

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        if batch.count:
            self._subscriptions.publish(claim.job.tenant, claim.job.id, batch)
