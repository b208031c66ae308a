"""A connection to a Redis or Valkey server, which serves as the message bus. The messages are sent
over publish/subscribe channels, so Redis does not store them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict

from antiphon.errors import SetupError, first_line
from antiphon.support.installation import needs_extra
from antiphon.support.tasks import BackgroundTasks

from .base import BusConnector, BusError, BusSession, Handlers

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub


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


class RedisSession:
    """Implements ``BusSession`` with a client of redis-py.

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
    try:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise SetupError(needs_extra("The client of Redis is not installed", "redis")) from None
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
        session = RedisSession(client, handlers, errors)
        try:
            await session.start()
        except BaseException:  # also if the caller was cancelled
            await session.close()
            raise
        return session

    return connect
