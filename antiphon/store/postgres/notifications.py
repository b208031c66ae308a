"""Notifications of other processes about runs, over LISTEN/NOTIFY, for the subscriptions in this
process.

A notice names runs by row. New batches of subscribed runs are fetched by one query for all runs,
one query at a time: notices that arrive meanwhile share the next query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
from msgspec import Struct

from antiphon.errors import RunError
from antiphon.store.records import EventBatch
from antiphon.store.row_mapping import event_batch_of
from antiphon.store.runs import RunListener
from antiphon.store.subscriptions import Subscriptions

from .pool import ConnectionPool, index_key

__all__ = ["Notice", "RunNotifications"]

_log = structlog.get_logger(__name__)

#: PostgreSQL's limit is 8000.
_MAX_NOTICE_BYTES = 7_900

_Key = tuple[str, str]


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one transaction of a process changed.

    ``by``: the sending process. ``grown``: rows of runs with new batches. ``over``: runs that
    ended. ``lost``: runs that another owner took over, with the epoch. ``queued``: there may be a
    run to claim.
    """

    by: str = ""
    grown: tuple[int, ...] = ()
    over: tuple[_Key, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    queued: bool = False
    #: Any run may have changed: the details did not fit.
    all: bool = False

    def encode(self, by: str) -> str:
        """Return the payload of the notification; without details if it is too long for
        PostgreSQL."""
        text = _encode(msgspec.structs.replace(self, by=by))
        if len(text) > _MAX_NOTICE_BYTES:
            text = _encode(Notice(by=by, queued=self.queued, all=True))
        return text.decode()


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notice).decode


class _SubscribedRun(Struct):
    """A subscribed run: its row, and the last event delivered to its subscriptions."""

    row: int
    last: int


class RunNotifications:
    """The notifications of one process. ``process_id`` marks its own notices."""

    def __init__(self, pool: ConnectionPool, subscriptions: Subscriptions, process_id: str) -> None:
        self._pool = pool
        self._subscriptions = subscriptions
        self._process_id = process_id
        self._listener: RunListener | None = None
        self._is_started = False
        self._subscribed_runs: dict[_Key, _SubscribedRun] = {}
        self._rows_to_fetch: set[int] = set()
        self._fetch_all = False
        self._fetch_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to listen."""
        if not self._is_started:
            self._is_started = True
            self._pool.listen(self._on_notice, self._on_gap)

    def set_listener(self, listener: RunListener) -> None:
        """Notify this listener from now on."""
        self._listener = listener
        self.start()

    async def close(self) -> None:
        """Stop to listen."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.wait((self._fetch_task,))

    # --- changes by this process -----------------------------------------------------------------

    def publish_local(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        """Deliver a batch that this process appended."""
        followed = self._subscribed_runs.get((tenant, response_id))
        if followed is not None:
            followed.last = max(followed.last, batch.last)
        self._subscriptions.publish(tenant, response_id, batch)

    def notify_queued(self) -> None:
        """Notify the listener that there may be a run to claim."""
        if self._listener is not None:
            self._listener.on_run_queued()

    def notify_lost(self, lost: Sequence[tuple[str, int]]) -> None:
        """Notify the listener that other owners took over these runs."""
        if self._listener is not None:
            for response_id, epoch in lost:
                self._listener.on_run_lost(response_id, epoch)

    # --- changes by other processes --------------------------------------------------------------

    def _on_notice(self, text: str) -> None:
        try:
            notice = _decode(text)
        except msgspec.MsgspecError:
            return  # not from Antiphon
        # Also of this process: the answer to the statement that ended the run may be lost.
        self._subscriptions.mark_stale(notice.over)
        if notice.by == self._process_id:
            return
        if notice.queued:
            self.notify_queued()
        self.notify_lost(notice.lost)
        if not (notice.grown or notice.all) or not self._subscriptions.subscribed_runs():
            return
        self._rows_to_fetch.update(notice.grown)
        self._fetch_all = self._fetch_all or notice.all
        if self._fetch_task is None:
            self._fetch_task = asyncio.create_task(self._fetch_loop(), name="news")

    def _on_gap(self) -> None:
        """Handle possibly missed notifications: all subscribers read the store."""
        self._subscribed_runs.clear()
        self._subscriptions.mark_stale()
        self.notify_queued()

    async def _fetch_loop(self) -> None:
        try:
            while self._rows_to_fetch or self._fetch_all:
                grown, self._rows_to_fetch = self._rows_to_fetch, set()
                everything, self._fetch_all = self._fetch_all, False
                await self._fetch(None if everything else grown)
        except RunError:
            self._on_gap()  # readers read the store and get the error
        finally:
            self._fetch_task = None

    async def _fetch(self, rows_to_fetch: set[int] | None) -> None:
        """Fetch and deliver the new batches of these runs (None: of all subscribed runs)."""
        wanted = set(self._subscriptions.subscribed_runs())
        for response_id in self._subscribed_runs.keys() - wanted:
            del self._subscribed_runs[response_id]
        await self._add_subscribed([each for each in wanted if each not in self._subscribed_runs])
        rows = {
            followed.row: (name, followed)
            for name, followed in self._subscribed_runs.items()
            if rows_to_fetch is None or followed.row in rows_to_fetch
        }
        if not rows:
            return
        lasts = [followed.last for _, followed in rows.values()]
        for row, *columns in await self._pool.rows("news", list(rows), lasts):
            name, followed = rows[row]
            self._publish(name, followed, event_batch_of(columns))

    def _publish(self, name: _Key, followed: _SubscribedRun, batch: EventBatch) -> None:
        if batch.first == followed.last + 1:
            self._subscriptions.publish(*name, batch)
        elif batch.last > followed.last:  # a gap: readers read the store
            self._subscriptions.mark_stale([name])
        followed.last = max(followed.last, batch.last)

    async def _add_subscribed(self, names: list[_Key]) -> None:
        """Start to deliver batches of newly subscribed runs. Their readers read earlier batches."""
        if not names:
            return
        tenants, ids = zip(*((tenant, index_key(name)) for tenant, name in names), strict=True)
        for number, row, last in await self._pool.rows("followed", tenants, ids):
            self._subscribed_runs[names[number - 1]] = _SubscribedRun(row, last)
            self._subscriptions.mark_stale([names[number - 1]])
