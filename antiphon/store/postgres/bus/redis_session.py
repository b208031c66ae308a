"""A connection to a Redis or Valkey server, which serves as the message bus. The messages are sent
over publish/subscribe channels, so Redis does not store them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from antiphon.errors import SetupError, first_line
from antiphon.support.installation import needs_extra

from .base import BusConnector, BusError, BusSession, Handlers

__all__ = ["RedisSession", "connector"]

#: Timeout for connecting and for an answer, in seconds, and seconds between pings.
_ANSWER_S, _PING_S = 10.0, 5.0


class RedisSession:
    """Implements ``BusSession`` with a client of redis-py. One connection sends messages, another
    connection receives them."""

    def __init__(self, client: Any, errors: tuple[type[Exception], ...]) -> None:
        self._client = client
        self._errors = errors
        self._connections: list[Any] = []
        self._listener: Any = None
        self._protocol: Any = None
        self._sender: Any = None

    async def start(
        self,
        handlers: Handlers,
        read_messages: Callable[[Any, Handlers], Any],
        open_sender: Callable[[Any], Any],
    ) -> None:
        """Open both connections, and subscribe to the channels, which are the keys of ``handlers``.
        Raises ``BusError``. ``read_messages``, ``open_sender``: the functions with these names in
        the module ``redis_protocol``."""
        try:
            self._listener = await self._connect()
            self._sender = open_sender(await self._connect())
            self._protocol = read_messages(self._listener, handlers)
            await self._listener.send_command("SUBSCRIBE", *handlers)
            async with asyncio.timeout(_ANSWER_S):
                await self._protocol.is_subscribed.wait()
            await self._ping()
        except self._errors as error:
            raise BusError(first_line(error)) from error

    async def _connect(self) -> Any:
        connection = await self._client.connection_pool.get_connection()
        self._connections.append(connection)
        return connection

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        await self._sender.send([("PUBLISH", channel, data) for channel, data in messages])

    async def _ping(self) -> None:
        async with asyncio.timeout(_ANSWER_S):
            await self._sender.send([("PING",)])

    async def wait_until_lost(self) -> None:
        """Send pings over the two connections of the session, the sending and the receiving one,
        until one of them gets no answer."""
        with suppress(*self._errors, BusError):
            while True:
                self._protocol.has_received = False
                await self._listener.send_command("PING")
                await self._ping()
                is_lost = await self._is_lost_within(_PING_S)
                if not is_lost and not self._protocol.has_received:
                    is_lost = await self._is_lost_within(_ANSWER_S)
                if is_lost or not self._protocol.has_received:
                    return

    async def _is_lost_within(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the loss of the listening connection. Return whether the
        connection is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._protocol.is_lost.wait()
        return bool(self._protocol.is_lost.is_set())

    async def close(self) -> None:
        for connection in self._connections:
            with suppress(*self._errors):
                await connection.disconnect()
        with suppress(*self._errors):
            await self._client.aclose()


def connector() -> BusConnector:
    """Return the function that connects to Redis. Raises ``SetupError`` if the client library is
    not installed."""
    try:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        from .redis_protocol import open_sender, read_messages
    except ImportError:
        raise SetupError(needs_extra("The client of Redis is not installed", "redis")) from None
    errors = (redis.RedisError, OSError, TimeoutError)

    async def connect(url: str, handlers: Handlers) -> BusSession:
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
        session = RedisSession(client, errors)
        try:
            await session.start(handlers, read_messages, open_sender)
        except BaseException:  # also if the caller was cancelled
            await session.close()
            raise
        return session

    return connect
