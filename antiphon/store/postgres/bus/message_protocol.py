"""The base class of asyncio protocols that receive the messages of a bus. The client library of the
bus opens the connection. Then such a protocol replaces the library's own protocol on this
connection."""

from __future__ import annotations

import asyncio

from .base import Handlers

__all__ = ["MessageProtocol"]


class MessageProtocol(asyncio.Protocol):
    """Receives the bytes of a connection. A subclass parses them, and calls ``deliver`` with each
    message. Calls that pause or resume writing, and the end of the connection, are passed on to the
    protocol of the client library.

    ``client``: the protocol of the client library. ``handlers``: for each channel, the function
    that is called with each message.
    """

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        self._transport = transport
        self._client = client
        self._handlers = {channel.encode(): handler for channel, handler in handlers.items()}

    def deliver(self, channel: bytes, message: bytes) -> None:
        """Call the handler of the channel with the message. If the channel has no handler, drop the
        message."""
        if (handler := self._handlers.get(channel)) is not None:
            handler(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost(error)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()
