"""Event logs of runs in SQLite. This module appends batches of events to the logs, reads them, and
ends the runs. It also stores the webhooks that must be sent after the end of runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Protocol

from antiphon.store.common.row_mapping import event_batch_of
from antiphon.store.records import (
    Append,
    Claim,
    DueWebhook,
    EventBatch,
    EventPage,
    StoredResponse,
    WebhookEvent,
)
from antiphon.store.usage import UsageRecord

from .database import Database
from .run_tables import LARGE_BYTES, RunTables, page_of

__all__ = ["SaveResponse", "SqliteEventLogs"]

#: The largest sequence number.
_MAX_SEQUENCE_NUMBER = 2**31 - 1


class SaveResponse(Protocol):
    """A function that returns another function, which stores a response. The other function must be
    called within a transaction (``Database.write``). ``listed``: whether other requests can refer
    to the items of the response by id."""

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


class SqliteEventLogs:
    """Base class of the SQLite run stores. It has the methods of ``RunStore`` that are the same for
    one process and for several processes. ``save``: returns a function that stores a response; see
    ``SaveResponse``."""

    def __init__(self, database: Database, save: SaveResponse) -> None:
        self._database = database
        self._queries = database.queries
        self._save = save
        self._tables = RunTables(database.queries)

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
        tenant, response_id = claim.job.tenant, claim.job.id
        save_response = self._save(
            tenant,
            stored,
            conversation,
            expires_at=expires_at,
            listed=stored.response.store,
            usage=usage,
        )

        def work(connection: sqlite3.Connection) -> bool:
            if not self._tables.end(connection, claim, batch):
                return False
            save_response(connection)
            if webhook is not None:
                row = (webhook.id, webhook.body, webhook.due_at)
                connection.execute(self._queries["add_webhook"], row)
            self.forget(connection, tenant, response_id)
            return True

        def notify(ended: bool) -> None:
            if ended:
                self._publish(claim, batch)
                self.remove(tenant, response_id)

        return await self._database.write(work, then=notify)

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        ((count,),) = await self._database.rows("count_unended_runs", (tenant, api_key), tuple)
        return int(count)

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        def work(connection: sqlite3.Connection) -> tuple[DueWebhook, ...]:
            rows = connection.execute(self._queries["due_webhooks"], (now, limit)).fetchall()
            for row in rows:
                connection.execute(self._queries["count_webhook_attempt"], (retry_at, row[0]))
            return tuple(DueWebhook(name, body, attempts + 1) for name, body, attempts in rows)

        if not await self._database.rows("due_webhooks", (now, 1), lambda row: row[0]):
            return ()
        return await self._database.write(work)

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        await self._execute("postpone_webhook", (until, event_id))

    async def delete_webhook(self, event_id: str) -> None:
        await self._execute("drop_webhook", (event_id,))

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        key = (claim.job.tenant, claim.job.id)
        return tuple(await self._database.rows("history", key, event_batch_of))

    async def events(
        self, tenant: str, response_id: str, after: int, *, limit: int
    ) -> EventPage | None:
        def work(connection: sqlite3.Connection) -> EventPage | None:
            first = min(after + 1, _MAX_SEQUENCE_NUMBER)
            arguments = (LARGE_BYTES, first, first, tenant, response_id)
            with closing(connection.execute(self._queries["events"], arguments)) as rows:
                return page_of(connection, rows, after, limit)

        return await self._database.read(work)

    def forget(self, connection: sqlite3.Connection, tenant: str, response_id: str) -> None:
        """Delete the conversation locks of a run that has ended or was deleted. Does nothing if
        locks are kept in memory. Called within the transaction that ends or deletes the run."""

    def remove(self, tenant: str, response_id: str) -> None:
        """Notify the subscribers of a run that the run has ended or was deleted. If conversation
        locks are kept in memory, also release the run's lock. Called after the transaction that
        ended or deleted the run."""
        raise NotImplementedError

    def _publish(self, claim: Claim, batch: EventBatch) -> None:
        """Deliver a committed batch of events to the subscribers of its run."""
        raise NotImplementedError

    async def _execute(self, query: str, arguments: tuple[Any, ...]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries[query], arguments)

        await self._database.write(work)

    async def _has_ended(self, tenant: str, response_id: str) -> bool:
        rows = await self._database.rows("run", (tenant, response_id), tuple)
        return any(row[3] is not None for row in rows)
