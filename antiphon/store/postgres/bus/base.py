"""The contract of a message bus between processes that share a PostgreSQL store.

The messages contain batches of events of runs. The bus need not be reliable: messages may be lost,
late, repeated or forged. Each message is signed with a secret of the store, and a message without a
valid signature is dropped. A reader accepts a batch only if the batch begins with the event that
the reader needs next. If an event is missing, the reader reads the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

#: A function for each channel, which is called with each message.
Handlers = Mapping[str, Callable[[bytes], None]]

_DIGEST_BYTES = 16


class BusError(Exception):
    """Raised if the bus does not answer, or if the connection is lost."""


class BusSession(Protocol):
    """A connection to a bus. It receives the messages of some channels, and can send messages to
    any channel."""

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send messages. Each one is a pair of channel and content. Raises ``BusError``."""

    async def wait_until_lost(self) -> None:
        """Wait until the connection is lost. The connection also counts as lost if the bus does not
        answer pings."""

    async def close(self) -> None:
        """Close the connection."""


#: Connects to a bus and listens to channels. Raises ``BusError``.
BusConnector = Callable[[Handlers], Awaitable[BusSession]]


class MessageSigner:
    """Signs messages with a secret, and checks the signatures of received messages. So messages
    from senders without the secret have no effect."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, channel: str, message: bytes) -> bytes:
        """Return the signature of the message, followed by the message."""
        return self._digest(channel, message) + message

    def verify(self, channel: str, signed: bytes) -> bytes | None:
        """Return the message without its signature. Returns None if the signature is invalid: the
        sender does not have the secret, or the message was signed for another channel."""
        message = signed[_DIGEST_BYTES:]
        if compare_digest(signed[:_DIGEST_BYTES], self._digest(channel, message)):
            return message
        return None

    def _digest(self, channel: str, message: bytes) -> bytes:
        return blake2b(
            message + channel.encode(), digest_size=_DIGEST_BYTES, key=self._secret[:64]
        ).digest()
