"""Background runs in SQLite: their logs, a row a batch, beside the responses they make.

One process has the database, so that what another owner had is free. It knows nothing of events.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from .base import StoredResponse
from .database import Database
from .holds import Holds
from .rows import batch_of, claim_of
from .runs import Append, Batch, Claim, Job, Listener, Page
from .tails import Tail, Tails

__all__ = ["SqliteRuns"]

#: Owns what was seized: it is about to end, and left alone by those who look for work.
_NOBODY = ""
#: Rows of a log read in one step, whatever the limit.
_ROWS = 1_000


class _Keep(Protocol):
    """Makes the work that keeps a response."""

    def __call__(
        self,
        tenant: str,
        stored: StoredResponse,
        conversation: str | None = None,
        *,
        expires_at: int | None = None,
        listed: bool = True,
    ) -> Callable[[sqlite3.Connection], None]: ...


class SqliteRuns:
    """``RunStore`` over a database."""

    def __init__(self, database: Database, keep: _Keep) -> None:
        self._database = database
        self._queries = database.queries
        self._keep = keep
        self._tails = Tails()
        self._holds = Holds()
        self._listener: Listener | None = None

    async def begin(self, job: Job, stored: StoredResponse, batch: Batch) -> None:
        keep = self._keep(job.tenant, stored, listed=False)
        row = (job.tenant, job.id, job.model, job.request, job.prompt)

        def work(connection: sqlite3.Connection) -> None:
            keep(connection)
            run = connection.execute(self._queries["begin_run"], row).lastrowid
            self._add(connection, run, batch)

        await self._database.write(work)
        self._queued()

    async def claim(
        self, owner: str, models: Collection[str], *, limit: int, lease_s: float
    ) -> tuple[Claim, ...]:
        def work(connection: sqlite3.Connection) -> list[tuple[Claim, str | None]]:
            taken: list[tuple[Claim, str | None]] = []
            for row in connection.execute(self._queries["claimable"], (owner,)).fetchall():
                if len(taken) < limit and row[3] in models:
                    taken.append((self._take(connection, row, owner), row[8]))
            return taken

        if limit < 1 or not await self._database.read("claimable", (owner,), _any):
            return ()
        taken = await self._database.write(work)
        for claim, had in taken:
            self._lost(claim, had)
        return tuple(claim for claim, _ in taken)

    async def beat(self, owner: str) -> None:
        """Who has the database is alive."""

    async def release(self, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["release_runs"], (owner,))

        await self._database.write(work)
        running = await self._database.read("claimable", (owner,), lambda row: str(row[2]))
        self._holds.release(owner, running)
        self._queued()

    async def seize(self, tenant: str, response_id: str) -> Claim | None:
        def work(connection: sqlite3.Connection) -> tuple[Claim, str | None] | None:
            row = connection.execute(self._queries["job"], (tenant, response_id)).fetchone()
            return None if row is None else (self._take(connection, row, _NOBODY), row[8])

        taken = await self._database.write(work)
        if taken is None:
            return None
        self._lost(*taken)
        return taken[0]

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        def work(connection: sqlite3.Connection) -> list[Append]:
            kept: list[Append] = []
            for append in appends:
                run = self._mine(connection, append.claim)
                if run is not None and append.batch.first >= run[1]:
                    self._add(connection, run[0], append.batch)
                    kept.append(append)
                elif run is None:
                    lost.add(append.claim.job.id)
            return kept

        lost: set[str] = set()
        for append in await self._database.write(work):
            self._tell(append.claim, append.batch)
        return frozenset(lost)

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
    ) -> bool:
        keep = self._keep(
            claim.job.tenant,
            stored,
            conversation,
            expires_at=expires_at,
            listed=stored.response.store,
        )

        def work(connection: sqlite3.Connection) -> bool:
            run = self._mine(connection, claim)
            if run is None:
                return False
            if batch.count:
                self._add(connection, run[0], batch)
            connection.execute(self._queries["end_run"], (run[0],))
            keep(connection)
            return True

        if not await self._database.write(work):
            return False
        self._holds.forget(claim.job.id)
        if batch.count:
            self._tell(claim, batch)
        self.touch([(claim.job.tenant, claim.job.id)])
        return True

    async def history(self, claim: Claim) -> tuple[Batch, ...]:
        key = (claim.job.tenant, claim.job.id)
        return tuple(await self._database.read("history", key, batch_of))

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Page | None:
        runs = await self._database.read("run", (tenant, response_id), tuple)
        if not runs:
            return None
        seq, _, end, ended_at = runs[0]
        found: list[Batch] = []
        at = after + 1
        while at < end and sum(batch.count for batch in found) < limit:
            asked = (seq, seq, at, min(limit, _ROWS))
            rows = await self._database.read("events_from", asked, batch_of)
            if not rows:
                break
            found += _enough(rows, limit - sum(batch.count for batch in found))
            at = found[-1].last + 1
        return Page(tuple(found), ended=ended_at is not None and at >= end)

    def follow(self, tenant: str, response_id: str) -> Tail:
        return self._tails.follow(tenant, response_id)

    async def hold(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        return self._holds.hold(tenant, conversation_id, holder, owner)

    async def let_go(self, tenant: str, conversation_id: str, holder: str) -> None:
        self._holds.let_go(tenant, conversation_id, holder)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    # --- for the store beside it -----------------------------------------------------------------

    def touch(self, keys: Iterable[tuple[str, str]]) -> None:
        """Something happened to these runs that no tail was told."""
        self._tails.touch(keys)

    def expire(self, connection: sqlite3.Connection, before: int | None, now: int) -> None:
        """Forget the events of runs that ended before then. One that ended since the last look
        counts from now on, for nothing here has a clock."""
        connection.execute(self._queries["see_ended"], (now,))
        if before is not None:
            connection.execute(self._queries["expire_runs"], (before,))

    # --- within ----------------------------------------------------------------------------------

    def _take(self, connection: sqlite3.Connection, row: tuple[Any, ...], owner: str) -> Claim:
        connection.execute(self._queries["take_run"], (owner, row[0]))
        claim = claim_of(row[1:8])
        return replace(claim, epoch=claim.epoch + 1, attempts=claim.attempts + 1)

    def _mine(self, connection: sqlite3.Connection, claim: Claim) -> tuple[int, int] | None:
        """The run's row and next number, if the claim still holds."""
        key = (claim.job.tenant, claim.job.id)
        row = connection.execute(self._queries["run"], key).fetchone()
        if row is None or row[1] != claim.epoch or row[3] is not None:
            return None
        return row[0], row[2]

    def _add(self, connection: sqlite3.Connection, run: int | None, batch: Batch) -> None:
        row = (run, batch.first, batch.count, batch.lines, batch.tokens)
        connection.execute(self._queries["add_batch"], row)
        connection.execute(self._queries["advance_run"], (batch.last + 1, run))

    def _tell(self, claim: Claim, batch: Batch) -> None:
        self._tails.put(claim.job.tenant, claim.job.id, batch)

    def _queued(self) -> None:
        if self._listener is not None:
            self._listener.queued()

    def _lost(self, claim: Claim, had: str | None) -> None:
        if had and self._listener is not None:
            self._listener.lost(claim.job.id, claim.epoch)


def _enough(batches: list[Batch], count: int) -> list[Batch]:
    """As many of them as it takes to have ``count`` events."""
    found: list[Batch] = []
    for batch in batches:
        if count <= 0:
            break
        found.append(batch)
        count -= batch.count
    return found


def _any(row: tuple[Any, ...]) -> bool:
    return True
