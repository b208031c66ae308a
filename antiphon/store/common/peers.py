"""Messages between the processes of one host that share a store (the peers), over Unix sockets in
one folder.

Each process listens at the socket ``ID.peer``. When a process starts, it connects to all sockets in
the folder. So each process is connected to each other process. Messages may be lost when a process
ends or does not read.

The folder belongs to the user of the processes, and no other user can enter it. So messages are not
signed.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from antiphon.ipc.frames import FrameConnection

_SUFFIX = ".peer"
#: The suffix of a socket that does not accept connections yet.
_NEW_SUFFIX = ".new"
#: Seconds that another process may take to accept a connection, and to name itself.
_GREETING_S = 2.0
#: Largest number of bytes that wait to be sent to one process. Above it, messages are dropped.
_MAX_UNSENT_BYTES = 1 << 23


class Peers:
    """The connections of one process to the other processes. ``process_id``: the id of this
    process. ``on_message``: called with the id of the sender and the message. ``on_gone``: called
    with the id of a process whose connection has closed. Both are called on the event loop."""

    def __init__(
        self,
        process_id: str,
        on_message: Callable[[str, bytes], None],
        on_gone: Callable[[str], None] = lambda process_id: None,
    ) -> None:
        self._process_id = process_id
        self._on_message = on_message
        self._on_gone = on_gone
        self._socket_path: Path | None = None
        self._connections: dict[str, FrameConnection] = {}
        self._all: set[FrameConnection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, folder: Path) -> None:
        """Listen for connections, and connect to the processes that already listen. ``folder``: the
        folder with the sockets of all processes. Raises ``OSError`` if it cannot be used."""
        try:
            await asyncio.to_thread(_make_private, folder)
            await self._listen(folder / f"{self._process_id}{_SUFFIX}")
            await self._connect_all(folder)
        except BaseException:
            self.close()
            raise

    @property
    def is_alone(self) -> bool:
        """Whether there is no process to which messages can be sent."""
        return not self._connections

    def is_connected(self, process_id: str) -> bool:
        """Return whether messages can be sent to a process."""
        return process_id in self._connections

    def broadcast(self, message: bytes) -> None:
        """Send a message to all other processes."""
        for process_id in tuple(self._connections):
            self.send(process_id, message)

    def send(self, process_id: str, message: bytes) -> None:
        """Send a message to one process. Do nothing if the process has ended."""
        connection = self._connections.get(process_id)
        if connection is not None and connection.unsent_bytes <= _MAX_UNSENT_BYTES:
            connection.send(message)

    def close(self) -> None:
        """Close all connections, after the messages are sent."""
        if self._server is not None:
            self._server.close()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
        for connection in tuple(self._all):
            connection.close()
        self._connections.clear()

    async def _listen(self, path: Path) -> None:
        self._socket_path = path.with_suffix(_NEW_SUFFIX)
        self._server = await asyncio.get_running_loop().create_unix_server(
            self._accept, str(self._socket_path)
        )
        self._socket_path = self._socket_path.rename(path)  # now it accepts connections

    async def _connect_all(self, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        greetings = []
        for path in folder.glob(f"*{_SUFFIX}"):
            if path == self._socket_path:
                continue
            greeted: asyncio.Future[None] = loop.create_future()
            try:
                async with asyncio.timeout(_GREETING_S):
                    await loop.create_unix_connection(partial(self._connect, greeted), str(path))
            except ConnectionRefusedError:  # its process was killed
                path.unlink(missing_ok=True)
            except OSError:  # its process has just ended, or cannot accept connections now
                continue
            else:
                greetings.append(greeted)
        if greetings:
            await asyncio.wait(greetings, timeout=_GREETING_S)

    def _connect(self, greeted: asyncio.Future[None]) -> FrameConnection:
        """Create this process's side of a connection to another process, which already listens.
        ``greeted``: a future that gets its result when the other process has named itself."""

        def on_named(connection: FrameConnection) -> None:
            if not greeted.done():
                greeted.set_result(None)

        return self._connection(self._name_itself, on_named)

    def _accept(self) -> FrameConnection:
        return self._connection(lambda connection: None, self._name_itself)

    def _name_itself(self, connection: FrameConnection) -> None:
        connection.send(self._process_id.encode())

    def _connection(
        self,
        on_open: Callable[[FrameConnection], None],
        on_named: Callable[[FrameConnection], None],
    ) -> FrameConnection:
        """Create one side of a connection. The first message of each side is the id of its
        process."""
        names: list[str] = []

        def on_frame(frame: bytes) -> None:
            if names:
                self._on_message(names[0], frame)
                return
            names.append(frame.decode())
            self._connections[names[0]] = connection
            on_named(connection)

        def on_closed() -> None:
            self._all.discard(connection)
            if names and self._connections.get(names[0]) is connection:
                del self._connections[names[0]]
                self._on_gone(names[0])

        connection = FrameConnection(on_frame, on_closed, on_open)
        self._all.add(connection)
        return connection


def _make_private(folder: Path) -> None:
    """Create the folder. Raises ``OSError`` if it belongs to another user, or if other users may
    have access to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    is_private = not stat.S_IMODE(status.st_mode) & 0o077
    if not (stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_private):
        raise PermissionError("other users may have access to the folder")
