"""A faster way to receive messages from NATS. It reads the messages directly from the connection of
a NATS client.

The client library nats-py passes each message through a stream, a parser, a queue and two tasks. If
many Antiphon processes run on a machine, this takes more CPU time than all other work on the
messages. So ``NatsProtocol`` stands between the transport and the client. It passes each message to
its handler as soon as the bytes arrive. The client still connects, authenticates, sends messages
and answers pings.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .base import Handlers
from .message_protocol import MessageProtocol

__all__ = ["NatsProtocol", "read_messages"]

_LINE_END = b"\r\n"
#: The first words of a message: without headers, and with headers.
_MESSAGES = b"MSG ", b"HMSG "
#: Largest size of a line and of a message, in bytes. The longest line describes the server.
_MAX_LINE, _MAX_MESSAGE = 1 << 20, 1 << 26


class NatsProtocol(MessageProtocol):
    """Receives the bytes of a NATS connection. Passes each message to the handler of its channel,
    and all other bytes to ``client``, the protocol of the NATS client.

    ``handlers``: the handlers by channel. Messages of channels without a handler are dropped.
    Messages with headers are also dropped; Antiphon never sends such messages.
    """

    def __init__(
        self, transport: asyncio.Transport, client: asyncio.Protocol, handlers: Handlers
    ) -> None:
        super().__init__(transport, client, handlers)
        #: The bytes of an incomplete line or message, and the length at which they may be complete.
        self._incomplete = bytearray()
        self._needed = 0

    def data_received(self, data: bytes) -> None:
        if self._incomplete:
            self._incomplete += data
            if len(self._incomplete) < self._needed:
                return
            data = bytes(self._incomplete)
        start = 0
        self._needed = 0
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
                size = -1
            if not 0 <= size <= _MAX_MESSAGE:
                self._transport.abort()
                return
            if len(data) < content + size + len(_LINE_END):
                self._needed = content + size + len(_LINE_END) - start
                break
            if words[0] == b"MSG":
                self.deliver(words[1], data[content : content + size])
            start = content + size + len(_LINE_END)
        self._incomplete = bytearray(data[start:])
        if not self._needed and len(self._incomplete) > _MAX_LINE:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._client.eof_received()


def read_messages(client: Any, handlers: Handlers) -> None:
    """Make a ``NatsProtocol`` receive the messages of a connected client. The client must not
    have subscriptions yet.

    The client offers no public access to its transport. In another version of nats-py, the
    transport may be in another attribute. This function then does nothing, and the callbacks of the
    client's subscriptions receive the messages.
    """
    try:
        transport = client._transport._io_writer.transport
    except AttributeError:
        return
    transport.set_protocol(NatsProtocol(transport, transport.get_protocol(), handlers))
