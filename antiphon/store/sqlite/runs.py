"""The SQLite run store: claims, leases, conversation locks and reservations.

The database has tables for the heartbeats of processes, the locks of conversations, and the
reservations (room reserved in a tenant's quota for unfinished responses). An operation that depends
on these tables, such as a claim, reads and writes them in the same transaction as the runs and
responses. Times are measured by the machine's monotonic clock, which is the same for all processes.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from antiphon.store.common.locks import free_runs
from antiphon.store.common.reservations import exceeds
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.records import (
    Claim,
    ConversationLock,
    EventBatch,
    Job,
    RunLimit,
    StoredResponse,
)
from antiphon.store.runs import RunLimitReached, RunListener

from .database import Database
from .event_logs import SaveResponse, SqliteEventLogs
from .peer_notifications import PeerNotifications
from .run_tables import ClaimedFrom

__all__ = ["SqliteRuns"]

#: Owner of runs that were taken over in order to end them.
_TAKEOVER_OWNER = ""


class SqliteRuns(SqliteEventLogs):
    """Implements ``RunStore`` with tables. ``save``: prepares the storage of a response; see
    ``SaveResponse``. ``folder``: the folder with the sockets of the processes that share the
    database; None if only this process uses it."""

    def __init__(self, database: Database, save: SaveResponse, folder: Path | None) -> None:
        super().__init__(database, save)
        self._notifications = PeerNotifications(folder)

    async def open(self) -> None:
        """Connect to the other processes."""
        await self._notifications.open()

    async def close(self) -> None:
        """Close the connections to the other processes."""
        await self._notifications.close()

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
        save_response = self._save(job.tenant, stored, listed=False)

        def work(connection: sqlite3.Connection) -> bool | RunLimit:
            if lock is not None and not self.has_lock(connection, job.tenant, job.id, lock):
                return False
            limit = self._tables.find_reached_limit(connection, job.tenant, limits)
            if limit is not None:
                return limit
            save_response(connection)
            self._tables.begin(connection, job, batch, lock=lock, api_key=api_key)
            return True

        def notify(created: bool | RunLimit) -> None:
            if created is True:
                self._notifications.on_created(job.id)

        created = await self._database.write(work, then=notify)
        if isinstance(created, RunLimit):
            raise RunLimitReached(created)
        return created

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

        def work(connection: sqlite3.Connection) -> list[ClaimedFrom]:
            self._record_heartbeat(connection, owner)
            is_free = self._free_runs(connection, owner, lease_s, held)
            claims = self._tables.claim(
                connection, owner, models, is_free, limit=limit, tenant_limit=tenant_limit
            )
            for claim, _ in claims:
                row = (owner, claim.job.tenant, claim.job.id)
                connection.execute(self._queries["transfer_locks"], row)
            return claims

        def notify(claims: list[ClaimedFrom]) -> None:
            lost = [(claim.job.id, claim.epoch) for claim, old_owner in claims if old_owner]
            self._notifications.on_claimed([claim for claim, _ in claims], lost)

        return tuple(claim for claim, _ in await self._database.write(work, then=notify))

    async def heartbeat(
        self,
        owner: str,
        models: Collection[str] = (),
        *,
        lease_s: float = math.inf,
        held: Collection[str] | None = None,
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            self._record_heartbeat(connection, owner)
            is_free = self._free_runs(connection, owner, lease_s, held)
            return self._tables.has_free_run(connection, models, is_free)

        return await self._database.write(work)

    async def release(self, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["release_runs"], (owner,))
            connection.execute(self._queries["release_locks"], (owner,))
            connection.execute(self._queries["forget_owner"], (owner,))

        await self._database.write(work, then=lambda _: self._notifications.on_released())

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        def work(connection: sqlite3.Connection) -> ClaimedFrom | None:
            self._record_heartbeat(connection, _TAKEOVER_OWNER)
            return self._tables.take_over(connection, tenant, response_id, _TAKEOVER_OWNER)

        def notify(claimed: ClaimedFrom | None) -> None:
            if claimed is not None:
                claim, old_owner = claimed
                lost = [(claim.job.id, claim.epoch)] if old_owner else []
                self._notifications.on_claimed([claim], lost)

        claimed = await self._database.write(work, then=notify)
        return None if claimed is None else claimed[0]

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        return self._notifications.subscribe(tenant, response_id)

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if self._run_has_ended(connection, tenant, holder) is True:
                return False
            row = connection.execute(
                self._queries["lock_holder"], (tenant, conversation_id)
            ).fetchone()
            if row is not None and row[0] != holder:
                is_active = self._run_has_ended(connection, tenant, row[0]) is False
                if is_active or row[1] in self._living_owners(connection, lease_s):
                    return False
            lock = (tenant, conversation_id, holder, owner)
            connection.execute(self._queries["put_lock"], lock)
            self._record_heartbeat(connection, owner)
            return True

        return await self._database.write(work)

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        await self._execute("unlock", (tenant, conversation_id, holder))

    def set_listener(self, listener: RunListener) -> None:
        self._notifications.set_listener(listener)

    # --- called by the store ---------------------------------------------------------------------

    def has_lock(
        self, connection: sqlite3.Connection, tenant: str, holder: str, lock: ConversationLock
    ) -> bool:
        """Return whether the response ``holder`` has this conversation lock."""
        key = (tenant, lock.conversation)
        row = connection.execute(self._queries["lock_holder"], key).fetchone()
        return row is not None and tuple(row) == (holder, lock.owner)

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

        def work(connection: sqlite3.Connection) -> bool:
            key = (tenant, response_id)
            self._record_heartbeat(connection, owner)
            former = connection.execute(self._queries["reserving_owner"], key).fetchone()
            oldest = time.monotonic() - lease_s
            connection.execute(self._queries["drop_dead_reservations"], (tenant, oldest))
            connection.execute(self._queries["put_reservation"], (*key, owner))
            query = self._queries["response_totals"]
            count, stored_bytes = connection.execute(query, (tenant,)).fetchone()
            query = self._queries["count_reservations"]
            (unsaved,) = connection.execute(query, (tenant,)).fetchone()
            if not (
                exceeds(count + unsaved, max_responses) or exceeds(stored_bytes + 1, max_bytes)
            ):
                return True
            if former is None:
                connection.execute(self._queries["drop_reservation"], (*key, owner))
            else:
                connection.execute(self._queries["put_reservation"], (*key, former[0]))
            return False

        return await self._database.write(work)

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        """See ``Store.release_reservation``."""
        await self._execute("drop_reservation", (tenant, response_id, owner))

    def forget(self, connection: sqlite3.Connection, tenant: str, response_id: str) -> None:
        connection.execute(self._queries["drop_locks"], (tenant, response_id))

    def remove(self, tenant: str, response_id: str) -> None:
        self._notifications.on_run_ended(tenant, response_id)

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        if batch.count:
            self._notifications.on_appended(claim.job.tenant, claim.job.id, batch)

    # --- within a transaction --------------------------------------------------------------------

    def _record_heartbeat(self, connection: sqlite3.Connection, owner: str) -> None:
        connection.execute(self._queries["heartbeat"], (owner, time.monotonic()))

    def _free_runs(
        self,
        connection: sqlite3.Connection,
        owner: str,
        lease_s: float,
        held: Collection[str] | None,
    ) -> Callable[[str, str | None], bool]:
        """Return a function that tells whether ``owner`` may claim a run. The arguments of the
        function are the id and the current owner of the run.

        ``owner`` may claim a run that has no owner, or whose owner has sent no heartbeat for
        ``lease_s`` seconds. It may also claim a run of its own that is not in ``held``. ``held``:
        as in ``RunStore.claim``."""
        return free_runs(owner, self._living_owners(connection, lease_s), held)

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
