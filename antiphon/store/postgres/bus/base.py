"""The contract of a message bus between the processes of a PostgreSQL store, and the choice of a
bus from its URL.

A bus need not be reliable: messages may be lost, late, repeated or forged. Messages are signed with
a secret of the store. A reader uses a batch from a message only if the batch comes directly after
the reader's last event. Otherwise it reads the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

from antiphon.errors import SetupError

__all__ = ["BusConnector", "BusError", "BusSession", "Handlers", "MessageSigner", "find_connector"]

#: A function for each channel, which is called with each message.
Handlers = Mapping[str, Callable[[bytes], None]]

_DIGEST_BYTES = 16


class BusError(Exception):
    """Raised if the bus does not answer, or if the connection is lost."""


class BusSession(Protocol):
    """A connection to a bus, which listens to channels."""

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send messages. Each one is a pair of channel and content. Raises ``BusError``."""

    async def wait_until_lost(self) -> None:
        """Wait until the connection is lost. If the bus does not answer pings, the connection
        counts as lost."""

    async def close(self) -> None:
        """Close the connection."""


#: Connects to a bus and listens to channels. Raises ``BusError``.
BusConnector = Callable[[str, Handlers], Awaitable[BusSession]]


def find_connector(url: str) -> BusConnector:
    """Return the function that connects to the bus at this URL. Raises ``SetupError`` if the scheme
    of the URL is unknown, or if the client library is not installed."""
    if url.startswith(("nats://", "tls://")):
        from .nats_session import connector

        return connector()
    if url.startswith(("redis://", "rediss://")):
        from .redis_session import connector

        return connector()
    raise SetupError("bus: use nats://HOST:PORT or redis://HOST:PORT, with TLS tls:// or rediss://")


class MessageSigner:
    """Signs messages with a secret, and checks signatures. So messages from outside of the store
    have no effect."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, channel: str, message: bytes) -> bytes:
        """Return the message with its signature before it."""
        return self._digest(channel, message) + message

    def verify(self, channel: str, signed: bytes) -> bytes | None:
        """Return the message without its signature. Returns None if the signature is invalid: the
        message comes from outside of the store, or from another channel."""
        message = signed[_DIGEST_BYTES:]
        if compare_digest(signed[:_DIGEST_BYTES], self._digest(channel, message)):
            return message
        return None

    def _digest(self, channel: str, message: bytes) -> bytes:
        digest = blake2b(message, digest_size=_DIGEST_BYTES, key=self._secret[:64])
        digest.update(channel.encode())
        return digest.digest()
