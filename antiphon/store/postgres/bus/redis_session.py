"""A connection to Redis or Valkey, over their publish/subscribe channels. Messages are not
stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from antiphon.errors import SetupError, first_line
from antiphon.installation import needs_extra

from .base import BusConnector, BusError, BusSession, Handlers

__all__ = ["RedisSession", "connector"]

#: Timeout for connecting and for an answer, in seconds, and seconds between pings.
_ANSWER_S, _PING_S = 10.0, 5.0


class RedisSession:
    """``BusSession`` over a client of redis-py. One connection sends, another one listens."""

    def __init__(
        self, client: Any, handlers: Handlers, errors: tuple[type[Exception], ...]
    ) -> None:
        self._client = client
        self._listener = client.pubsub(ignore_subscribe_messages=True)
        self._handlers = handlers
        self._errors = errors

    async def start(self) -> None:
        """Begin to listen to the channels. Raises ``BusError``."""
        try:
            await self._listener.subscribe(*self._handlers)
            await self._client.ping()
        except self._errors as error:
            await self.close()
            raise BusError(first_line(error)) from error

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for channel, message in messages:
                    pipeline.publish(channel, message)
                await pipeline.execute()
        except self._errors as error:
            raise BusError(first_line(error)) from error

    async def wait_until_lost(self) -> None:
        pings = asyncio.create_task(self._ping_regularly())
        try:
            with suppress(*self._errors):
                while not pings.done():
                    message = await self._listener.get_message(timeout=_PING_S)
                    if message is None:
                        await self._listener.ping()
                    elif message["type"] == "message":
                        self._handlers[message["channel"].decode()](message["data"])
        finally:
            pings.cancel()
            await asyncio.wait((pings,))

    async def _ping_regularly(self) -> None:
        """Send pings to Redis until Redis does not answer."""
        with suppress(*self._errors):
            while True:
                await self._client.ping()
                await asyncio.sleep(_PING_S)

    async def close(self) -> None:
        with suppress(*self._errors):
            await self._listener.aclose()
        with suppress(*self._errors):
            await self._client.aclose()


def connector() -> BusConnector:
    """Return the function that connects to Redis. Raises ``SetupError`` if the client library is
    not installed."""
    try:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
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
        session = RedisSession(client, handlers, errors)
        await session.start()
        return session

    return connect
