"""Notifications about new batches of events between the processes of one host, over Unix sockets in
one folder.

Each process listens at the socket ``ID.events``. ``ID`` is the id under which the store records the
process as a follower of runs. To notify another process, a process sends the batches to the
socket of that process. If this socket does not exist, the batches go another way (see
batch_notices.py). A notification of the database would also reach the process, but it would wake
all processes that listen. Messages may be lost when a process ends.

The folder belongs to the user of the processes, and no other user can enter it. So messages are not
signed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from antiphon.ipc.frames import FrameConnection
from antiphon.store.records import EventBatch
from antiphon.support.tasks import BackgroundTasks

from .batch_payloads import encode_batches

_log = structlog.get_logger(__name__)

_SUFFIX = ".events"
#: The suffix of a socket that does not accept connections yet.
_NEW_SUFFIX = ".new"
#: Largest size of a message. The receiver reads batches with longer lines from the database.
_MAX_BYTES = 1 << 19
#: Largest number of bytes in the send buffer of one connection. Above it, messages are dropped, and
#: the receiver reads the batches from the database.
_MAX_UNSENT_BYTES = 1 << 23
#: Timeout for connecting, and time after which a failed connection is tried again, in seconds.
_CONNECT_S, _RETRY_S = 1.0, 10.0

#: Batches to send, with the rows of their runs.
LocalBatches = list[tuple[int, EventBatch]]


class LocalSockets:
    """The sockets over which one process exchanges batches with the other processes on this host.
    Made by ``open``. ``folder``: the folder with the sockets of all processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Called with the id of a process and the batches that could not be sent to it.
        self.on_unsent: Callable[[str, LocalBatches], None] = lambda process_id, batches: None
        self._own_path: Path | None = None
        self._server: asyncio.Server | None = None
        self._accepted_connections: set[FrameConnection] = set()
        self._connections: dict[str, FrameConnection] = {}
        #: Processes to which a connection failed, and when it may be tried again.
        self._retry_at: dict[str, float] = {}
        #: Batches of the current iteration of the event loop.
        self._new_batches: dict[str, LocalBatches] = {}
        #: Batches that wait for a connection.
        self._connecting_batches: dict[str, LocalBatches] = {}
        #: Tasks that open connections.
        self._tasks = BackgroundTasks("local notifications")
        self._is_closed = False

    @classmethod
    async def open(
        cls, folder: Path, process_id: str, on_message: Callable[[bytes], None]
    ) -> LocalSockets | None:
        """Listen for messages to this process. ``on_message``: called on the event loop with each
        message, which is a payload from ``encode_batches``.

        Returns None if the folder cannot be used. In this case, this process exchanges
        notifications with the other processes on this host as it does with processes on other
        hosts.
        """
        sockets = cls(folder)
        try:
            await asyncio.to_thread(_prepare, folder)
            await sockets._listen(process_id, on_message)
        except OSError as error:
            await sockets.close()
            _log.info(
                "sockets between the processes of this host cannot be used",
                folder=str(folder),
                error=str(error),
            )
            return None
        except BaseException:
            await sockets.close()
            raise
        return sockets

    def send(self, process_id: str, row: int, batch: EventBatch) -> bool:
        """Queue a batch to be sent to another process. ``row``: the row number of the run. Returns
        False if the other process has no socket, or if a connection to it failed recently. If the
        connection fails later, ``on_unsent`` is called with the batch."""
        if process_id not in self._connections and not self._may_connect(process_id):
            return False
        if not self._new_batches:  # batches that are appended together share a message
            asyncio.get_running_loop().call_soon(self._send_new)
        self._new_batches.setdefault(process_id, []).append((row, batch))
        return True

    async def close(self) -> None:
        """Send the queued batches and close the sockets."""
        self._send_new()
        self._is_closed = True
        await self._tasks.wait()
        if self._server is not None:
            self._server.close()
        if self._own_path is not None:
            self._own_path.unlink(missing_ok=True)
        for connection in (*self._accepted_connections, *self._connections.values()):
            connection.close()
        self._connections.clear()

    def _path(self, process_id: str) -> Path:
        return self._folder / f"{process_id}{_SUFFIX}"

    def _may_connect(self, process_id: str) -> bool:
        if self._is_closed or not self._path(process_id).exists():
            return False
        retry_at = self._retry_at.get(process_id)
        return retry_at is None or asyncio.get_running_loop().time() >= retry_at

    async def _listen(self, process_id: str, on_message: Callable[[bytes], None]) -> None:
        def accept() -> FrameConnection:
            connection = FrameConnection(
                on_message, lambda: self._accepted_connections.discard(connection)
            )
            self._accepted_connections.add(connection)
            return connection

        path = self._path(process_id)
        self._own_path = path.with_suffix(_NEW_SUFFIX)
        self._server = await asyncio.get_running_loop().create_unix_server(
            accept, str(self._own_path)
        )
        self._own_path.rename(path)  # now it accepts connections
        self._own_path = path

    def _send_new(self) -> None:
        batches_by_process, self._new_batches = self._new_batches, {}
        for process_id, batches in batches_by_process.items():
            if (connection := self._connections.get(process_id)) is not None:
                _write(connection, batches)
            elif process_id in self._connecting_batches:
                self._connecting_batches[process_id] += batches
            else:
                self._connecting_batches[process_id] = batches
                self._tasks.start(self._connect(process_id))

    async def _connect(self, process_id: str) -> None:
        """Connect to a process and send it the batches that wait for the connection."""
        connection = FrameConnection(
            lambda frame: None, lambda: self._on_closed(process_id, connection)
        )
        path, loop = self._path(process_id), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.create_unix_connection(lambda: connection, str(path))
        except (OSError, TimeoutError) as error:
            if isinstance(error, ConnectionRefusedError):  # the process was killed
                path.unlink(missing_ok=True)
            else:
                self._retry_at[process_id] = loop.time() + _RETRY_S
            self.on_unsent(process_id, self._connecting_batches.pop(process_id))
        else:
            self._retry_at.pop(process_id, None)
            self._connections[process_id] = connection
            _write(connection, self._connecting_batches.pop(process_id))

    def _on_closed(self, process_id: str, connection: FrameConnection) -> None:
        if self._connections.get(process_id) is connection:
            del self._connections[process_id]


def _write(connection: FrameConnection, batches: LocalBatches) -> None:
    if connection.unsent_bytes <= _MAX_UNSENT_BYTES:
        for payload in encode_batches(batches, _MAX_BYTES):
            connection.send(payload)


def _prepare(folder: Path) -> None:
    """Create the folder, and delete the sockets of processes that were killed. Raises ``OSError``
    if the folder belongs to another user, or if other users may have access to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    is_private = not stat.S_IMODE(status.st_mode) & 0o077
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_private):
        raise PermissionError("other users may have access to the folder")
    for path in folder.glob(f"*{_SUFFIX}"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):  # it may be alive
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
