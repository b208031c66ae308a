"""Reads messages from the connection of a NATS client, in place of the client.

nats-py passes each message through a stream, a parser, a queue and two tasks. With many processes
on a machine, this takes more CPU time than all other work of a follower on a message. Here, the
client connects, authenticates, sends and answers pings as before. Only the messages go to their
handlers at once, while the bytes that arrive are processed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .base import Handlers

__all__ = ["MessageProtocol", "read_messages"]

_LINE_END = b"\r\n"
#: The first words of a message: without headers, and with headers.
_MESSAGES = b"MSG ", b"HMSG "
#: Bytes of a line. The information about the server is the longest line.
_MAX_LINE = 1 << 20


class MessageProtocol(asyncio.Protocol):
    """Calls the handler of the channel for each message, and passes all other bytes to the protocol
    of the client.

    ``handlers``: by channel. Messages of other channels and messages with headers, which Antiphon
    never sends, are dropped.
    """

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        self._transport = transport
        self._client = client
        self._handlers = {channel.encode(): handler for channel, handler in handlers.items()}
        #: Bytes of a line or message that is not complete.
        self._incomplete = b""

    def data_received(self, data: bytes) -> None:
        data = self._incomplete + data
        start = 0
        while (end := data.find(_LINE_END, start)) >= 0:
            content = end + len(_LINE_END)
            if not data.startswith(_MESSAGES, start):
                self._client.data_received(data[start:content])
                start = content
                continue
            # MSG channel subscription [reply] size; HMSG has the size of the headers before.
            words = data[start:end].split()
            try:
                size = int(words[-1])
            except ValueError:
                self._transport.abort()
                return
            if len(data) < content + size + len(_LINE_END):
                break
            if words[0] == b"MSG" and (handler := self._handlers.get(words[1])) is not None:
                handler(data[content : content + size])
            start = content + size + len(_LINE_END)
        else:
            if len(data) - start > _MAX_LINE:
                self._transport.abort()
                return
        self._incomplete = data[start:]

    def eof_received(self) -> bool | None:
        return self._client.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost(error)

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        self._client.resume_writing()


def read_messages(client: Any, handlers: Handlers) -> None:
    """Read the messages of a connected client that has no subscriptions yet.

    The client offers no public access to its transport. If another version of the client keeps the
    transport elsewhere, the callbacks of the client's subscriptions receive the messages instead.
    """
    try:
        transport = client._transport._io_writer.transport
    except AttributeError:
        return
    transport.set_protocol(MessageProtocol(transport, transport.get_protocol(), handlers))
