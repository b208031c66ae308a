"""Read and write the tables of runs, within a transaction of the caller.

The methods must be called in the thread that runs the transaction.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing

from antiphon.store.common.claims import Rank, choose_fairly
from antiphon.store.records import (
    Claim,
    ClaimQuery,
    EventBatch,
    EventPage,
    NewRun,
    RunEnd,
)
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import Columns, claim_of

#: A page ends after this many bytes of events. A batch with more bytes than this is large.
_PAGE_BYTES = _LARGE_BYTES = 1 << 20

#: A claim, and the former owner of the run.
ClaimedFrom = tuple[Claim, str | None]


class RunTables:
    """Executes the statements on the tables of runs. ``queries``: the SQL statements by name.
    ``is_encrypted``: whether rows are encrypted. Large rows are then not read and written in
    place."""

    def __init__(self, queries: Mapping[str, str], *, is_encrypted: bool) -> None:
        self._queries = queries
        #: Number of bytes of lines above which they are read and written in place.
        self.large_bytes = sys.maxsize if is_encrypted else _LARGE_BYTES

    def begin(self, connection: sqlite3.Connection, new: NewRun) -> None:
        """Add a run with its first events."""
        job, lock = new.job, new.lock
        conversation = index_key(lock.conversation) if lock is not None else None
        name = (job.tenant, job.id, job.model)
        row = (*name, conversation, new.api_key, new.by_name, new.start_by)
        run = connection.execute(self._queries["begin_run"], row).lastrowid
        connection.execute(self._queries["add_job"], (run, job.request, job.prompt))
        self.add_batch(connection, run, new.batch)

    def claim(
        self,
        connection: sqlite3.Connection,
        query: ClaimQuery,
        is_free: Callable[[str, str | None], bool],
    ) -> list[ClaimedFrom]:
        """Claim runs for the owner of ``query``; see ``RunStore.claim``. ``is_free``: a function
        that gets the id and the present owner of a run, and returns whether the run may be
        claimed."""
        running, own = Counter[str](), Counter[str]()
        for tenant, response_id, old_owner in connection.execute(self._queries["owned_runs"]):
            running[tenant] += 1
            own[tenant] += old_owner == query.owner and not is_free(response_id, old_owner)
        tenants = [row[0] for row in connection.execute(self._queries["queued_tenants"])]
        room = None
        if query.tenant_limit is not None:
            room = {tenant: query.tenant_limit - own[tenant] for tenant in tenants}
        with ExitStack() as stack:
            sources = {
                tenant: stack.enter_context(
                    closing(self._queued(connection, tenant, query, is_free))
                )
                for tenant in tenants
            }
            chosen = choose_fairly(sources, running, limit=query.limit, room=room)
        return [(self._take(connection, run, query.owner), old) for run, old in chosen]

    def has_free_run(
        self,
        connection: sqlite3.Connection,
        query: ClaimQuery,
        is_free: Callable[[str, str | None], bool],
    ) -> bool:
        """Return whether the owner of ``query`` can claim any run. ``is_free``: as in
        ``claim``."""
        with closing(connection.execute(self._queries["all_unended_runs"])) as runs:
            return any(
                query.finds(name, model, by_name=by_name) and is_free(name, owner)
                for name, model, by_name, owner in runs
            )

    def take_over(
        self, connection: sqlite3.Connection, tenant: str, response_id: str, owner: str
    ) -> ClaimedFrom | None:
        """Take one run away from its owner, and give it to ``owner``. Returns None if the run is
        unknown or has ended."""
        row = connection.execute(self._queries["run"], (tenant, response_id)).fetchone()
        if row is None or row[3] is not None:
            return None
        return self._take(connection, row[0], owner), row[4]

    def end(self, connection: sqlite3.Connection, claim: Claim, end: RunEnd) -> int | None:
        """Mark a run as ended, and return its row number. Returns None and changes nothing if the
        claim is no longer valid, or if the run was steered since ``end`` was made."""
        run = self.claimed_run(connection, claim)
        if run is None or run[2] != end.steering_count:
            return None
        connection.execute(self._queries["end_run"], (run[0],))
        connection.execute(self._queries["drop_job"], (run[0],))
        return run[0]

    def _queued(
        self,
        connection: sqlite3.Connection,
        tenant: str,
        query: ClaimQuery,
        is_free: Callable[[str, str | None], bool],
    ) -> Generator[tuple[Rank, tuple[int, str | None]], None, None]:
        """Yield the runs of a tenant that can be claimed, in the order and the form that
        ``choose_fairly`` expects.

        Each run is yielded as ``(rank, (row, owner))``. ``row``: the row number of the run.
        ``owner``: the former owner of the run, or None.
        """
        with closing(connection.execute(self._queries["unended_runs"], (tenant,))) as runs:
            for run, response_id, model, by_name, old_owner, start_by in runs:
                is_wanted = query.finds(response_id, model, by_name=by_name)
                if is_wanted and is_free(response_id, old_owner):
                    yield (start_by, run), (run, old_owner)

    def _take(self, connection: sqlite3.Connection, run: int, owner: str) -> Claim:
        connection.execute(self._queries["take_over_run"], (owner, run))
        return claim_of(connection.execute(self._queries["claim"], (run,)).fetchone())

    def claimed_run(
        self, connection: sqlite3.Connection, claim: Claim
    ) -> tuple[int, int, int] | None:
        """Return the row number of a claimed run, the sequence number of its next event, and how
        often it was steered. Returns None if the claim is no longer valid."""
        key = (claim.job.tenant, claim.job.id)
        row = connection.execute(self._queries["run"], key).fetchone()
        if row is None or row[1] != claim.epoch or row[3] is not None:
            return None
        return row[0], row[2], row[5]

    def add_batch(self, connection: sqlite3.Connection, run: int | None, batch: EventBatch) -> None:
        """Append a batch of events to a run, or do nothing if the batch has no events. ``run``: the
        row number of the run."""
        if batch.count:
            for part in batch.rows:
                self._add_row(connection, run, part)
                del part  # otherwise it stays in memory while the next part is made
            connection.execute(self._queries["advance_run"], (batch.last + 1, run))

    def _add_row(self, connection: sqlite3.Connection, run: int | None, batch: EventBatch) -> None:
        columns = {"lines": batch.lines, "tokens": batch.tokens}
        if len(batch.lines) <= self.large_bytes:
            row = (run, batch.first, batch.count, batch.at, *columns.values())
            connection.execute(self._queries["add_batch"], row)
            return
        # Written in place, because SQLite makes two copies of a value that it gets as an argument.
        sizes = map(len, columns.values())
        row = (run, batch.first, batch.count, batch.at, *sizes)
        row_id = connection.execute(self._queries["add_large_batch"], row).lastrowid
        for name, value in columns.items():
            if value and row_id is not None:
                with connection.blobopen("batches", name, row_id) as blob:
                    blob.write(value)


def page_of(
    connection: sqlite3.Connection, rows: Iterable[Columns], after: int, limit: int
) -> EventPage | None:
    """Make a page of the events after sequence number ``after``. Returns None if there are no rows.

    ``rows``: one row for each batch of events, with the columns ``ended``, ``first``, ``count``,
    ``rowid`` and ``lines``. For a batch of more than ``large_bytes``, ``lines`` is None, and the
    lines are read separately. ``limit``: as in ``RunStore.events``. No more rows are read than
    necessary.
    """
    batches: list[EventBatch] = []
    has_ended = None
    size = 0
    for ended, first, count, row_id, lines in rows:
        has_ended = bool(ended)
        if first is None or first + count - 1 <= after:
            continue
        if first > after + limit:  # sequence numbers have no gaps
            return EventPage(tuple(batches), ended=False)
        if lines is None:  # SQLite makes a copy of a value that it returns
            with connection.blobopen("batches", "lines", row_id, readonly=True) as blob:
                lines = blob.read()
        batches.append(EventBatch(first=first, count=count, lines=lines))
        size += len(lines)
        if size > _PAGE_BYTES:
            return EventPage(tuple(batches), ended=False)
    return None if has_ended is None else EventPage(tuple(batches), ended=has_ended)
