"""An optional message bus, Redis or Valkey, between processes that share a PostgreSQL store.

The messages contain batches of events of runs. They are sent over publish/subscribe channels, so
the bus does not store them. The bus need not be reliable: messages may be lost, late, repeated or
forged. Each message is signed with a secret of the store, and a message without a valid signature
is dropped. A reader accepts a batch only if the batch begins with the event that the reader needs
next. If an event is missing, the reader reads the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, TypedDict

import structlog

from antiphon.errors import SetupError, first_line
from antiphon.support.installation import needs_packages
from antiphon.support.tasks import BackgroundTasks, Backoff, running

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

#: A function for each channel, which is called with each message.
Handlers = Mapping[str, Callable[[bytes], None]]

_DIGEST_BYTES = 16


class BusError(Exception):
    """Raised if the bus does not answer, or if the connection is lost."""


#: Connects to a bus and listens to channels. Raises ``BusError``.
BusConnector = Callable[[Handlers], Awaitable["BusSession"]]


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


_log = structlog.get_logger(__name__)

_RETRY_S, _RETRY_MAX_S = 0.2, 5.0
#: Timeout for sending, in seconds. A bus that takes longer counts as lost.
_SEND_S = 2.0


class BusConnection:
    """Sends signed messages over a bus, and receives them. While there is no connection,
    ``publish`` sends nothing."""

    def __init__(self, connect: BusConnector, signer: MessageSigner) -> None:
        self._connect = connect
        self._signer = signer
        self._session: BusSession | None = None
        self._until_lost: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks("bus")

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection. The loss of a connection may be noticed late."""
        return self._session is not None

    def listen(self, handlers: Handlers, on_connected: Callable[[], None]) -> None:
        """Connect to the bus, and listen to channels from now on. ``handlers``: for each channel, a
        function that is called with each message. ``on_connected``: called each time the connection
        has been opened, because messages may have been missed before."""
        verified = {
            channel: self._verified(channel, handler) for channel, handler in handlers.items()
        }
        self._tasks.start(self._run(verified, on_connected))

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> bool:
        """Send messages. Each one is a pair of channel and content. Returns False if they could not
        be sent. Messages that were sent may still be lost."""
        session = self._session
        if session is None:
            return False
        signed = [(channel, self._signer.sign(channel, data)) for channel, data in messages]
        try:
            async with asyncio.timeout(_SEND_S):
                await session.publish(signed)
        except (BusError, TimeoutError) as error:
            _log.info("messages were not sent over the bus", error=str(error))
            if self._session is session and self._until_lost is not None:
                self._until_lost.cancel()
            return False
        return True

    async def close(self) -> None:
        """Close the connection."""
        await self._tasks.close()

    def _verified(self, channel: str, handler: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def on_message(signed: bytes) -> None:
            if (message := self._signer.verify(channel, signed)) is not None:
                handler(message)

        return on_message

    async def _run(self, handlers: Handlers, on_connected: Callable[[], None]) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
        while True:
            try:
                session = await self._connect(handlers)
            except BusError as error:
                _log.warning("the bus does not answer", error=str(error))
            else:
                backoff.reset()
                await self._use(session, on_connected)
            await backoff.pause()

    async def _use(self, session: BusSession, on_connected: Callable[[], None]) -> None:
        try:
            async with running(session.wait_until_lost()) as self._until_lost:
                self._session = session
                on_connected()
                await asyncio.wait((self._until_lost,))
                _log.warning("the connection to the bus is lost")
        finally:
            self._session = self._until_lost = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEND_S):
                    await session.close()


class _Message(TypedDict):
    """A message or the answer to a command, as redis-py returns it."""

    type: str
    channel: bytes
    data: bytes


#: Timeout for connecting and for an answer, and time between pings, in seconds.
_ANSWER_S, _PING_S = 10.0, 5.0

#: Publishes many messages with one command and one reply. With a pipeline of ``PUBLISH`` commands,
#: redis-py needs 10 µs for each message, because it encodes each command and parses each reply.
_PUBLISH_ALL = "for i = 1, #ARGV, 2 do redis.call('PUBLISH', ARGV[i], ARGV[i + 1]) end"


class BusSession:
    """A connection to a bus, with a client of redis-py. It receives the messages of some channels,
    and can send messages to any channel.

    ``errors``: the exceptions that the client raises if Redis does not answer or refuses a command.
    """

    def __init__(
        self, client: Redis, handlers: Handlers, errors: tuple[type[Exception], ...]
    ) -> None:
        self._client = client
        self._listener: PubSub = client.pubsub()
        self._publish_all = client.register_script(_PUBLISH_ALL)
        self._handlers: dict[bytes, Callable[[bytes], None]] = {
            channel.encode(): handler for channel, handler in handlers.items()
        }
        self._errors = errors
        #: Whether the listening connection has received anything since the last ping.
        self._has_received = False

    async def start(self) -> None:
        """Subscribe to the channels. Raises ``BusError``."""
        unconfirmed = set(self._handlers)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._listener.subscribe(*unconfirmed)
                async for message in self._listener.listen():
                    self._deliver(message)
                    if message["type"] == "subscribe":
                        unconfirmed.discard(message["channel"])
                    if not unconfirmed:
                        return
        except self._errors as error:
            raise BusError(first_line(error)) from error

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        """Send messages. Each one is a pair of channel and content. Raises ``BusError``."""
        try:
            await self._publish_all(args=[part for message in messages for part in message])
        except self._errors as error:
            raise BusError(first_line(error)) from error

    async def wait_until_lost(self) -> None:
        """Deliver messages until the listening connection is lost or a ping is not answered."""
        tasks = BackgroundTasks("messages of the bus")
        started = (tasks.start(self._receive()), tasks.start(self._ping()))
        try:
            await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()

    async def _receive(self) -> None:
        with suppress(*self._errors):
            async for message in self._listener.listen():
                self._has_received = True
                self._deliver(message)

    def _deliver(self, message: _Message) -> None:
        handler = self._handlers.get(message["channel"])
        if handler is not None and message["type"] == "message":
            handler(message["data"])

    async def _ping(self) -> None:
        with suppress(*self._errors):
            while True:
                self._has_received = False
                await self._listener.ping()
                await asyncio.sleep(_PING_S)
                if not self._has_received:
                    await asyncio.sleep(_ANSWER_S)
                if not self._has_received:
                    return

    async def close(self) -> None:
        """Close the connection."""
        with suppress(*self._errors):
            await self._listener.aclose()  # type: ignore[no-untyped-call]
        with suppress(*self._errors):
            await self._client.aclose()


def redis_connector(url: str) -> BusConnector:
    """Return the function that connects to the Redis or Valkey server at this URL. Raises
    ``SetupError`` if the scheme of the URL is unknown, or if the client library is not installed.
    """
    if not url.startswith(("redis://", "rediss://")):
        raise SetupError("bus: use redis://HOST:PORT, or rediss://HOST:PORT with TLS")
    with needs_packages("The client of Redis is not installed", "redis"):
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    errors = (redis.RedisError, OSError, TimeoutError)

    async def connect(handlers: Handlers) -> BusSession:
        try:
            client = redis.asyncio.Redis.from_url(
                url,
                socket_connect_timeout=_ANSWER_S,
                socket_timeout=_ANSWER_S,
                retry=Retry(NoBackoff(), 0),
                client_name="antiphon",
                protocol=2,  # with 3, the client formats each message for its debug log
            )
        except ValueError as error:
            raise BusError(first_line(error)) from error
        session = BusSession(client, handlers, errors)
        try:
            await session.start()
        except BaseException:  # also if the caller was cancelled
            await session.close()
            raise
        return session

    return connect
