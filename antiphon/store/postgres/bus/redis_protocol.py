"""A faster way to receive messages from Redis: reads them directly from a connection of redis-py
that only listens.

redis-py reads each message in a task, with timeouts and several layers of parsers. With many
processes on a machine, this takes most of the CPU time that a process needs for a message. Here,
the client connects and authenticates as usual. Then the connection gets this protocol, which calls
the handlers while it processes the received bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hiredis

from .base import Handlers
from .message_protocol import MessageProtocol

__all__ = ["RedisProtocol", "read_messages"]


class RedisProtocol(MessageProtocol):
    """Parses the replies of a connection that only listens, and delivers the messages."""

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        super().__init__(transport, client, handlers)
        self._reader = hiredis.Reader()
        self._unconfirmed = set(self._handlers)
        #: Set when all channels are subscribed, and when the connection is lost.
        self.is_subscribed, self.is_lost = asyncio.Event(), asyncio.Event()
        #: Whether the server has sent anything since this was set to False.
        self.has_received = False

    def data_received(self, data: bytes) -> None:
        self.has_received = True
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._process(reply)
        except hiredis.ProtocolError:
            self._transport.abort()

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


def read_messages(connection: Any, handlers: Handlers) -> RedisProtocol:
    """Read the messages of a connection of redis-py that has sent no command yet. redis-py offers
    no public access to the transport of a connection."""
    transport = connection._writer.transport
    protocol = RedisProtocol(transport, transport.get_protocol(), handlers)
    transport.set_protocol(protocol)
    return protocol
