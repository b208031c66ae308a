"""Notifications about new batches of events. A process follows a run if it has readers of the run.
The process that appends a batch to a run notifies the processes that follow the run.

Each process listens to a channel of its own. One notification can contain batches of several runs.
The lines of a batch, which are its events as JSON, are left out if they are too long. A
notification is sent after its batches are committed:

- over a Unix socket if the receiving process is on the same host,
- otherwise over the bus if there is one,
- otherwise as a notification of the database, in a transaction that does not wait for the disk.

A notification is not sent in the transaction that appends the batch. In PostgreSQL, commits with
notifications wait for one another in the whole cluster, which would prevent group commit.
Notifications may be lost, so the receiving processes also read the store from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec
import structlog

from antiphon.errors import RunError
from antiphon.store.common.peers import Peers
from antiphon.store.postgres.bus import BusConnection
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.records import EventBatch
from antiphon.support.tasks import BackgroundTasks

_log = structlog.get_logger(__name__)

#: Largest size of a message over the bus or a socket. The receiver reads batches with longer lines
#: from the database. Redis disconnects a listener for which 32 MiB wait.
_MAX_MESSAGE_BYTES = 1 << 19
#: Largest number of batches that wait to be sent. If the database is too slow, further batches are
#: dropped.
_MAX_WAITING = 10_000
#: Seconds that the last notifications may take when the store is closed.
_CLOSE_S = 1.0

#: Batches to send, with the rows of their runs, by the receiving process.
_Waiting = dict[str, list[tuple[int, EventBatch]]]


def process_channel(process_id: str) -> str:
    """Return the name of the channel to which a process listens."""
    return f"antiphon_{process_id}"


class BatchNotifier:
    """Sends notifications about batches of events. Processes on this host get them over sockets.
    Other processes get them over the bus while it is connected, and otherwise through the database.

    Only one send over the bus or the database is in progress at a time. Batches that are appended
    during a send are sent together in the next one. ``peers``: the processes on this host.
    """

    def __init__(self, pool: ConnectionPool, peers: Peers, bus: BusConnection | None) -> None:
        self._pool = pool
        self._peers = peers
        self._bus = bus
        #: Batches of the current iteration of the event loop, for processes on this host.
        self._local: _Waiting = {}
        self._waiting: _Waiting = {}
        self._notices: list[tuple[str, bytes]] = []
        self._count = 0
        self._tasks = BackgroundTasks("notifications")

    def send(self, process_id: str, row: int, batch: EventBatch) -> None:
        """Queue a notification to one process about a committed batch. ``row``: the row number of
        the run. If too many batches wait to be sent, the notification is dropped."""
        if self._peers.is_connected(process_id):
            if not self._local:  # batches that are appended together share a message
                asyncio.get_running_loop().call_soon(self._send_local)
            self._local.setdefault(process_id, []).append((row, batch))
        elif self._count < _MAX_WAITING:
            self._count += 1
            self._waiting.setdefault(process_id, []).append((row, batch))
            self._start()

    def _send_local(self) -> None:
        local, self._local = self._local, {}
        for process_id, batches in local.items():
            for payload in encode_batches(batches, _MAX_MESSAGE_BYTES):
                self._peers.send(process_id, payload)

    def send_notice(self, channel: str, payload: str) -> None:
        """Queue a notification that is not about a batch of events. ``payload`` is its content, and
        ``channel`` is the channel to which it is sent. The notification may be lost."""
        self._notices.append((channel, payload.encode()))
        self._start()

    async def close(self) -> None:
        """Send the queued notifications, but give up after a second."""
        self._send_local()
        await self._tasks.close(_CLOSE_S)

    def _start(self) -> None:
        self._tasks.start_once("send", self._send_all)

    async def _send_all(self) -> None:
        while self._waiting or self._notices:
            waiting, self._waiting, self._count = self._waiting, {}, 0
            notices, self._notices = self._notices, []
            if not await self._send_over_bus(waiting, notices):
                await self._send_over_database(waiting, notices)

    async def _send_over_bus(self, waiting: _Waiting, notices: list[tuple[str, bytes]]) -> bool:
        if self._bus is None or not self._bus.is_connected:
            return False
        return await self._bus.publish(_messages(waiting, notices, _MAX_MESSAGE_BYTES))

    async def _send_over_database(
        self, waiting: _Waiting, notices: list[tuple[str, bytes]]
    ) -> None:
        # The database keeps notifications in files.
        messages = _messages(waiting, notices, MAX_BYTES, has_lines=not self._pool.is_encrypted)
        channels, payloads = zip(*messages, strict=True)
        texts = [payload.decode() for payload in payloads]
        try:
            await self._pool.rows("notify_many", channels, texts)
        except RunError as error:
            _log.info("other processes are not notified", error=error.message)


def _messages(
    waiting: _Waiting,
    notices: list[tuple[str, bytes]],
    max_bytes: int,
    *,
    has_lines: bool = True,
) -> list[tuple[str, bytes]]:
    """Return the channel and the payload of each notification to send. ``waiting``: batches to
    encode as payloads. ``notices``: notifications that need no encoding. ``max_bytes``: largest
    size of an encoded payload. ``has_lines``: as in ``encode_batches``."""
    return notices + [
        (process_channel(process_id), payload)
        for process_id, batches in waiting.items()
        for payload in encode_batches(batches, max_bytes, has_lines=has_lines)
    ]


#: Largest size of the payload of a notification of PostgreSQL, whose limit is 8000 bytes.
MAX_BYTES = 7_900
#: Largest size of the head of one batch.
_HEAD_BYTES = 48

#: The head of a batch: row of the run, first event, number of events, and bytes of their lines.
#: 0 bytes mean that the lines are left out.
_Head = tuple[int, int, int, int]
_encode_heads = msgspec.json.Encoder().encode
_decode_heads = msgspec.json.Decoder(list[_Head]).decode


def encode_batches(
    batches: Iterable[tuple[int, EventBatch]],
    max_bytes: int = MAX_BYTES,
    *,
    has_lines: bool = True,
) -> Iterator[bytes]:
    """Yield the payloads of notifications about these batches. ``batches``: pairs of the row number
    of a run and a batch of its events. ``max_bytes``: largest size of a payload. A batch whose
    events do not fit into one payload is announced without its events. With ``has_lines`` False,
    all are."""
    heads: list[_Head] = []
    lines: list[bytes] = []
    used = 0
    longest = max_bytes - _HEAD_BYTES if has_lines else 0
    for row, batch in batches:
        size = len(batch.lines) if len(batch.lines) <= longest else 0
        if used + size + _HEAD_BYTES > max_bytes:
            yield _payload(heads, lines)
            heads, lines, used = [], [], 0
        heads.append((row, batch.first, batch.count, size))
        lines.append(batch.lines if size else b"")
        used += size + _HEAD_BYTES
    if heads:
        yield _payload(heads, lines)


def _payload(heads: list[_Head], lines: list[bytes]) -> bytes:
    return b"\n".join((_encode_heads(heads), b"".join(lines)))


def decode_batches(payload: bytes) -> list[tuple[int, EventBatch | None]]:
    """Decode a payload. Return pairs of the row number of a run and a batch of its events. If the
    events of a batch were too long for the payload, None replaces the batch, and the caller must
    read the events from the store. Raises ``MsgspecError`` if the payload is not from
    ``encode_batches``."""
    heads, _, lines = payload.partition(b"\n")
    batches: list[tuple[int, EventBatch | None]] = []
    start = 0
    for row, first, count, size in _decode_heads(heads):
        batch = EventBatch(first=first, count=count, lines=lines[start : start + size])
        batches.append((row, batch if size else None))
        start += size
    return batches
