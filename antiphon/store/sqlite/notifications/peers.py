"""Messages between the processes that share a database (the peers), over Unix sockets in one
folder.

Each process listens at a socket of its own. When a process starts, it connects to all sockets in
the folder. So each process is connected to each other process. Messages may be lost when a process
ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from antiphon.ipc.frames import FrameConnection

_SUFFIX = ".peer"
#: Seconds that another process may take to answer a new one.
_GREETING_S = 2.0
_Key = tuple[str, str]


class _Hello(Struct, frozen=True, array_like=True, tag=0):
    """The first message of each side of a connection. It contains the id of the sending process."""

    process_id: str


class RunsChanged(Struct, frozen=True, array_like=True, tag=1):
    """A message about the runs that a transaction changed.

    ``queued_runs``: new runs that can be claimed. ``claimed_runs``: runs that were claimed.
    ``has_released_runs``: True if the sending process is stopping and has released all its runs, so
    that other processes can claim them. ``lost_runs``: runs that another owner has taken over, each
    with its new epoch. ``ended_runs``: runs that ended or were deleted.
    """

    queued_runs: tuple[str, ...] = ()
    claimed_runs: tuple[str, ...] = ()
    has_released_runs: bool = False
    lost_runs: tuple[tuple[str, int], ...] = ()
    ended_runs: tuple[_Key, ...] = ()


class FollowRequest(Struct, frozen=True, array_like=True, tag=2):
    """A message from a process that has readers of a run, and wants to receive the new batches of
    events of this run. ``key``: tenant and id of the run."""

    key: _Key


class FollowReply(Struct, frozen=True, array_like=True, tag=3):
    """The answer to a ``FollowRequest``. The process that answers has recorded the process that
    asked as a follower of the run. From now on, each batch of events that the answering process
    appends to the run is also sent to the follower. The follower reads the earlier batches from the
    database. The follower repeats its request regularly, but gets no further answer while it is
    recorded."""

    key: _Key


class AppendedBatch(Struct, frozen=True, array_like=True, tag=4):
    """A new batch of events of a run. It is sent to each process that has readers of the run.
    ``key``: tenant and id of the run. ``first``, ``count``: as in ``EventBatch``. ``lines``: the
    events. If they are too long for a message, ``lines`` is empty, and the receiver reads them from
    the database."""

    key: _Key
    first: int
    count: int
    lines: bytes


PeerMessage: TypeAlias = RunsChanged | FollowRequest | FollowReply | AppendedBatch

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Hello | PeerMessage).decode


class Peers:
    """The connections of one process to the other processes. ``folder``: the folder with the
    sockets; None if there are no other processes. ``on_message``: called with the id of the sender
    and the message. ``on_gone``: called with the id of a process whose connection has closed. Both
    are called on the event loop."""

    def __init__(
        self,
        folder: Path | None,
        on_message: Callable[[str, PeerMessage], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._socket_path: Path | None = None
        self._on_message = on_message
        self._on_gone = on_gone
        self._process_id = secrets.token_hex(6)
        self._connections: dict[str, FrameConnection] = {}
        self._all: set[FrameConnection] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen for connections, and connect to the processes that already listen."""
        if self._folder is None:
            return
        loop = asyncio.get_running_loop()
        own = self._socket_path = self._folder / f"{self._process_id}{_SUFFIX}"
        self._server = await loop.create_unix_server(self._accept, str(own))
        greetings = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path != own:
                greeted: asyncio.Future[None] = loop.create_future()
                with suppress(OSError):  # the process of this socket has ended
                    await loop.create_unix_connection(partial(self._connect, greeted), str(path))
                    greetings.append(greeted)
        if greetings:
            await asyncio.wait(greetings, timeout=_GREETING_S)

    def broadcast(self, message: PeerMessage) -> None:
        """Send a message to all other processes."""
        if self._connections:
            frame = _encode(message)
            for connection in self._connections.values():
                connection.send(frame)

    def send(self, process_id: str, message: PeerMessage) -> None:
        """Send a message to one process. Do nothing if the process has ended."""
        if (connection := self._connections.get(process_id)) is not None:
            connection.send(_encode(message))

    def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
        for connection in tuple(self._all):
            connection.close()

    def _connect(self, greeted: asyncio.Future[None]) -> FrameConnection:
        """Create this process's side of a connection to another process, which already listens.
        ``greeted``: a future that gets its result when the first message of the other process
        arrives."""

        def on_hello() -> None:
            if not greeted.done():
                greeted.set_result(None)

        return self._connection(self._greet, lambda connection: on_hello())

    def _accept(self) -> FrameConnection:
        return self._connection(lambda connection: None, self._greet)

    def _greet(self, connection: FrameConnection) -> None:
        connection.send(_encode(_Hello(self._process_id)))

    def _connection(
        self,
        on_open: Callable[[FrameConnection], None],
        on_hello: Callable[[FrameConnection], None],
    ) -> FrameConnection:
        names: list[str] = []

        def on_frame(frame: bytes) -> None:
            message = _decode(frame)
            if isinstance(message, _Hello):
                names.append(message.process_id)
                self._connections[message.process_id] = connection
                on_hello(connection)
            elif names:
                self._on_message(names[0], message)

        def on_closed() -> None:
            self._all.discard(connection)
            if names and self._connections.get(names[0]) is connection:
                del self._connections[names[0]]
                self._on_gone(names[0])

        connection = FrameConnection(on_frame, on_closed, on_open)
        self._all.add(connection)
        return connection
