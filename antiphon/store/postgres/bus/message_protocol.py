"""The base of protocols that use the connection of a client library of a bus, in place of the
library's own protocol."""

from __future__ import annotations

import asyncio

from .base import Handlers

__all__ = ["MessageProtocol"]


class MessageProtocol(asyncio.Protocol):
    """Receives the bytes of a connection. A subclass calls the handler of the channel for each
    message. The protocol of the client library still learns when it may write, and when the
    connection ends.

    ``client``: the protocol of the client library. ``handlers``: the handlers by channel.
    """

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        self._transport = transport
        self._client = client
        self._handlers = {channel.encode(): handler for channel, handler in handlers.items()}

    def deliver(self, channel: bytes, message: bytes) -> None:
        """Call the handler of the channel. Messages of other channels are dropped."""
        if (handler := self._handlers.get(channel)) is not None:
            handler(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost(error)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()
