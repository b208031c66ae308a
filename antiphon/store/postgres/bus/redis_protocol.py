"""Receives and sends the messages of Redis over connections of redis-py, faster than redis-py does.

redis-py reads each message and each reply in a task, with timeouts and several layers of parsers.
With many processes on a machine, this takes most of the CPU time that a process needs for a
message. Here, redis-py only connects and authenticates. Then this module replaces the asyncio
protocol of each connection. On the connection that receives messages, ``RedisProtocol`` calls the
handlers as soon as the bytes arrive. On the connection that sends commands, ``RedisSender`` matches
replies to commands by their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis

from .base import BusError, Handlers
from .message_protocol import MessageProtocol

__all__ = ["RedisProtocol", "RedisSender", "open_sender", "read_messages"]

#: A command with its arguments.
Command = tuple[str | bytes, ...]


class _ReplyProtocol(MessageProtocol):
    """Base class of ``RedisProtocol`` and ``RedisSender``. It parses the replies of Redis, and
    passes them to ``_process`` of the subclass."""

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        super().__init__(transport, client, handlers)
        self._reader = hiredis.Reader()

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._process(reply)
        except hiredis.ProtocolError:
            self._transport.abort()

    def _process(self, reply: Any) -> None:
        raise NotImplementedError


class RedisProtocol(_ReplyProtocol):
    """The protocol of the connection that receives messages. It passes each message to the handler
    of its channel."""

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        super().__init__(transport, client, handlers)
        self._unconfirmed = set(self._handlers)
        #: Set when all channels are subscribed, and when the connection is lost.
        self.is_subscribed, self.is_lost = asyncio.Event(), asyncio.Event()
        #: Whether the server has sent anything since this was set to False.
        self.has_received = False

    def data_received(self, data: bytes) -> None:
        self.has_received = True
        super().data_received(data)

    def _process(self, reply: Any) -> None:
        match reply:
            case [b"message", channel, data]:
                self.deliver(channel, data)
            case [b"subscribe", channel, _]:
                self._unconfirmed.discard(channel)
                if not self._unconfirmed:
                    self.is_subscribed.set()
            case [b"pong", _]:
                pass
            case _:  # an error, or the server is no Redis
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost.set()
        super().connection_lost(error)


class _Request:
    """Commands that were sent together. ``missing_count``: number of replies that have not arrived.
    ``future``: done when all replies have arrived, or when the connection is lost."""

    __slots__ = ("error", "future", "missing_count")

    def __init__(self, missing_count: int) -> None:
        self.missing_count = missing_count
        self.error: str | None = None
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        if self.future.done():
            return  # the caller was cancelled
        if self.error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(BusError(self.error))


class RedisSender(_ReplyProtocol):
    """The protocol of the connection that sends commands. It waits for the replies."""

    def __init__(self, transport: asyncio.Transport, client: asyncio.Protocol) -> None:
        super().__init__(transport, client, {})
        self._requests: deque[_Request] = deque()

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands, and wait until all are answered. ``commands`` must not be empty. Raises
        ``BusError`` if a command is refused, or if the connection is lost."""
        if self._transport.is_closing():
            raise BusError("The connection is lost.")
        packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
        request = _Request(len(commands))
        self._requests.append(request)
        self._transport.write(b"".join(packed))
        await request.future

    def _process(self, reply: Any) -> None:
        if not self._requests:  # the server is no Redis
            self._transport.abort()
            return
        request = self._requests[0]
        request.missing_count -= 1
        if isinstance(reply, hiredis.ReplyError):
            request.error = str(reply)
        if not request.missing_count:
            self._requests.popleft().settle()

    def connection_lost(self, error: Exception | None) -> None:
        while self._requests:
            request = self._requests.popleft()
            request.error = "The connection is lost."
            request.settle()
        super().connection_lost(error)


def open_sender(connection: Any) -> RedisSender:
    """Create a ``RedisSender``, make it the protocol of a redis-py connection, and return it.
    Before this call, the connection must have received the replies to all its commands."""
    transport = connection._writer.transport
    protocol = RedisSender(transport, transport.get_protocol())
    transport.set_protocol(protocol)
    return protocol


def read_messages(connection: Any, handlers: Handlers) -> RedisProtocol:
    """Replace the protocol of a redis-py connection by a ``RedisProtocol``, and return it. The
    connection must not have sent a command yet. redis-py offers no public access to the transport
    of a connection, so this function uses a private attribute."""
    transport = connection._writer.transport
    protocol = RedisProtocol(transport, transport.get_protocol(), handlers)
    transport.set_protocol(protocol)
    return protocol
