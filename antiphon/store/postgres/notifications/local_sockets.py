"""Notifications about new batches of events between the processes of one host, over Unix sockets in
one folder.

Each process listens at a socket, whose name is the id of the process. A process that has batches
for another process looks for the socket of that process. If it exists, the batches are sent there.
So the database has no work, whereas it wakes all listening processes for each notification that it
carries. Messages may be lost when a process ends.

The folder belongs to the user of the processes, and no other user can enter it. So messages are not
signed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import structlog

from antiphon.ipc.frames import FrameConnection
from antiphon.store.records import EventBatch

from .batch_payloads import encode_batches

__all__ = ["LocalBatches", "LocalSockets"]

_log = structlog.get_logger(__name__)

_SUFFIX = ".events"
#: The suffix of a socket that does not accept connections yet.
_NEW_SUFFIX = ".new"
#: Largest size of a message. The receiver reads batches with longer lines from the database.
_MAX_BYTES = 1 << 19
#: Bytes that wait to be read by one receiver. If there are more, further messages are dropped.
_MAX_UNREAD_BYTES = 1 << 23
_CONNECT_S = 1.0

#: Batches to send, with the rows of their runs.
LocalBatches = list[tuple[int, EventBatch]]


class LocalSockets:
    """The sockets of one process. Made by ``open``. ``folder``: the folder with the sockets of all
    processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Called with the id of a process and the batches that could not be sent to it.
        self.on_unsent: Callable[[str, LocalBatches], None] = lambda process_id, batches: None
        self._own: Path | None = None
        self._server: asyncio.Server | None = None
        self._accepted: set[FrameConnection] = set()
        self._connections: dict[str, FrameConnection] = {}
        #: Processes that do not answer although they have a socket.
        self._unreachable: set[str] = set()
        self._queued: dict[str, LocalBatches] = {}
        #: Batches for processes to which a connection is being opened, and the tasks that open it.
        self._unsent: dict[str, LocalBatches] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls, folder: Path, process_id: str, on_message: Callable[[bytes], None]
    ) -> LocalSockets | None:
        """Listen for messages to this process. ``on_message``: called on the event loop with each
        message, which is a payload from ``encode_batches``. Returns None if the folder cannot be
        used: then all notifications go over the database."""
        sockets = cls(folder)
        try:
            await asyncio.to_thread(_prepare, folder)
            await sockets._listen(process_id, on_message)
        except OSError as error:
            _log.info(
                "processes on this host notify each other over the database",
                folder=str(folder),
                error=str(error),
            )
            return None
        return sockets

    def send(self, process_id: str, row: int, batch: EventBatch) -> bool:
        """Queue a batch to be sent to another process. ``row``: the row number of the run. Returns
        False if the process has no socket in the folder."""
        if process_id not in self._connections and (
            process_id in self._unreachable or not self._path(process_id).exists()
        ):
            return False
        if not self._queued:  # batches that are appended together share a message
            asyncio.get_running_loop().call_soon(self._send_queued)
        self._queued.setdefault(process_id, []).append((row, batch))
        return True

    async def close(self) -> None:
        """Send the queued batches and close the sockets."""
        self._send_queued()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            self._server.close()
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        for connection in (*self._accepted, *self._connections.values()):
            connection.close()

    def _path(self, process_id: str) -> Path:
        return self._folder / f"{process_id}{_SUFFIX}"

    async def _listen(self, process_id: str, on_message: Callable[[bytes], None]) -> None:
        def accept() -> FrameConnection:
            connection = FrameConnection(on_message, lambda: self._accepted.discard(connection))
            self._accepted.add(connection)
            return connection

        path = self._path(process_id)
        new = path.with_suffix(_NEW_SUFFIX)
        self._server = await asyncio.get_running_loop().create_unix_server(accept, str(new))
        new.rename(path)  # now it accepts connections
        self._own = path

    def _send_queued(self) -> None:
        queued, self._queued = self._queued, {}
        for process_id, batches in queued.items():
            if (connection := self._connections.get(process_id)) is not None:
                _write(connection, batches)
            elif process_id in self._unsent:
                self._unsent[process_id] += batches
            else:
                self._unsent[process_id] = batches
                task = asyncio.create_task(self._connect(process_id), name="local notifications")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _connect(self, process_id: str) -> None:
        """Connect to a process and send it the batches that wait for the connection."""
        connection = FrameConnection(
            lambda frame: None, lambda: self._on_closed(process_id, connection)
        )
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_unix_connection(
                    lambda: connection, str(self._path(process_id))
                )
        except (OSError, TimeoutError):
            self._unreachable.add(process_id)
            self.on_unsent(process_id, self._unsent.pop(process_id))
        else:
            self._connections[process_id] = connection
            _write(connection, self._unsent.pop(process_id))

    def _on_closed(self, process_id: str, connection: FrameConnection) -> None:
        if self._connections.get(process_id) is connection:
            del self._connections[process_id]


def _write(connection: FrameConnection, batches: LocalBatches) -> None:
    if connection.unsent_bytes <= _MAX_UNREAD_BYTES:
        for payload in encode_batches(batches, _MAX_BYTES):
            connection.send(payload)


def _prepare(folder: Path) -> None:
    """Create the folder, and delete the sockets of processes that were killed. Raises ``OSError``
    if the folder does not belong to the user of this process alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    is_private = not stat.S_IMODE(status.st_mode) & 0o077
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_private):
        raise PermissionError("other users may have access to the folder")
    for path in folder.glob(f"*{_SUFFIX}"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # it is alive, but busy
