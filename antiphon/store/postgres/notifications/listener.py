"""Notifications about runs. Processes that share a PostgreSQL store send them to each other over
LISTEN/NOTIFY. When a process receives the notification that a run has changed, it tells its own
readers of this run to read the store.

There are two kinds of notifications:

- A notice goes to all processes. It reports a rare change: runs were queued, claimed, taken over or
  deleted, or have ended.
- A new batch of events goes only to the processes that follow its run (see batch_notices.py). Such
  a process passes the batch to its readers.

If there is a bus, it replaces LISTEN/NOTIFY for batches and for notices of claimed runs. Processes
on the same host can send each other batches over sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from antiphon.store.common.claimable_runs import ClaimableRuns, Notice
from antiphon.store.common.peers import Peers
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.postgres.bus import BusConnection
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.records import EventBatch
from antiphon.store.runs import LocalNotifications, RunListener

from .batch_notices import BatchNotifier, process_channel
from .followed_runs import FollowedRuns

_log = structlog.get_logger(__name__)

#: The channel to which all processes listen.
NOTICES = "antiphon"
#: Largest size of a notice. PostgreSQL's limit is 8000 bytes.
_MAX_NOTICE_BYTES = 7_900
_IDS_IN_NOTICE = 100


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notice).decode


def encode_notice(notice: Notice) -> str:
    """Return the notice as text. If the text would be too long for PostgreSQL, return another one,
    which only says that any run may have changed."""
    text = _encode(notice)
    if len(text) > _MAX_NOTICE_BYTES:
        text = _encode(Notice(sender=notice.sender, all=True))
    return text.decode()


class RunNotifications(LocalNotifications):
    """The notifications that one process sends and receives.

    ``process_id``: the id of this process, by which it recognizes its own notices. From its own
    notices, the process uses only the list of ended runs, and ignores everything else.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        process_id: str,
        bus: BusConnection | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._process_id = process_id
        self._is_started = False
        self._followed = FollowedRuns(pool, self.subscriptions, process_id)
        self._peers = Peers(process_id, lambda _, payload: self._followed.on_batches(payload))
        self._batches = BatchNotifier(pool, self._peers, bus)
        self._bus = bus
        self._queue = ClaimableRuns(self.notify_queued)
        self.subscriptions.on_wait = self._followed.follow

    async def open_sockets(self, folder: Path) -> None:
        """Exchange batches with the other processes on this host over sockets in this folder, if it
        can be used. Call this before ``start``, so that other processes find the socket of this
        process."""
        try:
            await self._peers.open(folder)
        except OSError as error:
            _log.info(
                "sockets between the processes of this host cannot be used",
                folder=str(folder),
                error=str(error),
            )

    def start(self) -> None:
        """Start to listen for notifications. Does nothing if this process already listens."""
        if not self._is_started:
            self._is_started = True
            handlers = {
                NOTICES: self._on_notice,
                process_channel(self._process_id): self._followed.on_batches,
            }
            self._pool.listen(
                {channel: _of_text(handler) for channel, handler in handlers.items()}, self._on_gap
            )
            if self._bus is not None:
                self._bus.listen(handlers, self._followed.on_bus_connected)

    def set_listener(self, listener: RunListener) -> None:
        super().set_listener(listener)
        self.start()

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        self.start()
        return super().subscribe(tenant, response_id)

    async def close(self) -> None:
        """Stop following runs, send the waiting notifications, and close sockets and bus."""
        self._queue.close()
        await self._followed.close()
        await self._batches.close()
        self._peers.close()
        if self._bus is not None:
            await self._bus.close()

    # --- changes by this process -----------------------------------------------------------------

    def publish_local(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        """Deliver a batch of events to the readers in this process. Called after this process has
        appended the batch to the run of the response."""
        self._followed.on_append((tenant, response_id), batch)
        self.subscriptions.publish(tenant, response_id, batch)

    def publish_to(self, process_id: str, row: int, batch: EventBatch) -> None:
        """Send a committed batch of events to another process that follows the run. ``row``: the
        row number of the run."""
        if batch.parts:  # the other process fetches the batch from the store
            batch = EventBatch(first=batch.first, count=batch.count)
        if batch.count:
            self._batches.send(process_id, row, batch)

    def publish_claimed(self, run_ids: Sequence[str]) -> None:
        """Tell other processes that this process has claimed these runs (has taken them to execute
        them). So the other processes do not try to claim them."""
        self._queue.remove(run_ids)
        for start in range(0, len(run_ids), _IDS_IN_NOTICE):
            ids = tuple(run_ids[start : start + _IDS_IN_NOTICE])
            notice = Notice(sender=self._process_id, claimed_runs=ids)
            self._batches.send_notice(NOTICES, encode_notice(notice))

    # --- changes by other processes --------------------------------------------------------------

    def _on_notice(self, payload: bytes) -> None:
        try:
            notice = _decode(payload)
        except msgspec.MsgspecError:
            return  # not from Antiphon
        # Also if this process sent it: the answer to the statement that ended the run may be lost.
        self.subscriptions.mark_stale(notice.ended_runs)
        if notice.sender == self._process_id:
            return
        self._queue.on_notice(notice, can_claim=self.listener is not None)
        self.notify_lost(notice.lost_runs)
        if notice.all:
            self._followed.clear()

    def _on_gap(self) -> None:
        """Make all readers in this process read the store, because notifications may have been
        missed. Also tell the ``RunListener`` of this process that there may be runs to claim."""
        self._followed.on_connected()
        self.notify_queued()


def _of_text(handler: Callable[[bytes], None]) -> Callable[[str], None]:
    return lambda payload: handler(payload.encode())
