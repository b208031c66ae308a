"""A queue of responses to save. Responses that are saved at the same time share one statement,
which saves round trips and commits.

A limited number of statements may run at the same time. Below this number, a response is saved
immediately. Otherwise it waits until a running statement ends. The responses that wait then share
the next statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.store.sql.row_mapping import Columns, encode_usage
from antiphon.store.usage import UsageRecord

from .pool import ConnectionPool

#: Largest number of statements at a time. With two, one is prepared while the other one commits.
_MAX_STATEMENTS = 2
#: Largest number of responses in a statement, and number of bytes after which no more are added.
_MAX_ROWS, _MAX_BYTES = 64, 1 << 20


class ResponseRow(Struct, frozen=True):
    """A response to save. ``columns``: the values of the response's columns in the tables of
    responses and summaries. The values are the first arguments of the query "save", in the same
    order. ``items``: the ids of those items of the response to which other requests can refer.
    ``usage``: a record to add to the usage log. ``bytes``: the size of the response. ``blob``: the
    key of the blob that holds the large columns of the response; None if there is no blob."""

    columns: Columns
    items: Sequence[str]
    usage: UsageRecord | None
    bytes: int
    blob: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The tenant and the id of the response."""
        return self.columns[0], self.columns[1]

    @property
    def arguments(self) -> Columns:
        """The arguments of the query "save"."""
        used = encode_usage(() if self.usage is None else (self.usage,))
        return (*self.columns, self.items, used, self.blob)


class SaveQueue:
    """Saves responses through a connection pool. Responses that wait at the same time are saved
    with one statement."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._waiting: deque[tuple[ResponseRow, asyncio.Future[None]]] = deque()
        self._running = 0
        #: The keys of the responses in running statements.
        self._saving: set[tuple[str, str]] = set()
        #: Set while no response waits and no statement is running.
        self._idle = asyncio.Event()
        self._idle.set()

    async def close(self) -> None:
        """Wait until all responses are saved."""
        await self._idle.wait()

    async def save(self, row: ResponseRow) -> None:
        """Save a response. Returns after the response is durable. Several saves of one response
        take effect in the order of their calls. Raises ``StoreError``."""
        if self._running < _MAX_STATEMENTS and not self._waiting and row.key not in self._saving:
            self._begin([row])
            try:
                await self._pool.rows("save", *row.arguments)
            finally:
                self._end([row])
            return
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        await done

    def _begin(self, rows: Sequence[ResponseRow]) -> None:
        self._running += 1
        self._idle.clear()
        self._saving.update(row.key for row in rows)

    def _end(self, rows: Sequence[ResponseRow]) -> None:
        self._running -= 1
        self._saving.difference_update(row.key for row in rows)
        while self._running < _MAX_STATEMENTS and (batch := self._take_batch()):
            self._begin([row for row, _ in batch])
            self._pool.start(self._save_waiting(batch))
        if not self._running:
            self._idle.set()

    def _take_batch(self) -> list[tuple[ResponseRow, asyncio.Future[None]]]:
        """Select the rows that the next SQL statement saves, remove them from the queue, and return
        them.

        A row stays in the queue if an older version of the same response has been selected or is in
        a running statement. Otherwise the older version might be stored last.
        """
        batch: list[tuple[ResponseRow, asyncio.Future[None]]] = []
        keys = set(self._saving)
        size = 0
        while self._waiting and len(batch) < _MAX_ROWS and size < _MAX_BYTES:
            row, done = self._waiting[0]
            if row.key in keys:
                break
            self._waiting.popleft()
            if not done.done():  # otherwise the caller was cancelled
                batch.append((row, done))
                keys.add(row.key)
                size += row.bytes
        return batch

    async def _save_waiting(self, batch: list[tuple[ResponseRow, asyncio.Future[None]]]) -> None:
        try:
            if len(batch) > 1:
                await self._save_together(batch)
            for row, done in batch:
                if not done.done():
                    await self._save_alone(row, done)
        finally:
            for _, done in batch:
                done.cancel()  # no effect on a future that has a result or an error
            self._end([row for row, _ in batch])

    async def _save_together(self, batch: list[tuple[ResponseRow, asyncio.Future[None]]]) -> None:
        """Save several rows by one statement, and tell each waiting caller that its row is saved.
        If the statement fails, tell the callers nothing, because perhaps only one of the rows is
        the cause. ``_save_waiting`` then saves each row by a statement of its own."""
        rows = [row for row, _ in batch]
        items = [(id, place) for place, row in enumerate(rows, 1) for id in row.items]
        columns = map(list, zip(*(row.columns for row in rows), strict=True))
        ids, places = [id for id, _ in items], [place for _, place in items]
        blobs = [row.blob for row in rows]
        used = encode_usage([row.usage for row in rows if row.usage is not None])
        try:
            await self._pool.rows("save_many", *columns, ids, places, used, blobs)
        except StoreError:
            return
        for _, done in batch:
            if not done.done():
                done.set_result(None)

    async def _save_alone(self, row: ResponseRow, done: asyncio.Future[None]) -> None:
        try:
            await self._pool.rows("save", *row.arguments)
        except StoreError as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(None)
