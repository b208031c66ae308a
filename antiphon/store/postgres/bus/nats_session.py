"""A connection to NATS. It uses only core NATS, not JetStream, so NATS does not store the
messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from antiphon.errors import SetupError, first_line
from antiphon.support.installation import needs_extra

from .base import BusConnector, BusError, BusSession, Handlers
from .nats_protocol import read_messages

__all__ = ["NatsSession", "connector"]

_CONNECT_S = 5
#: Seconds between pings. After two pings without an answer, the connection counts as lost.
_PING_S, _MAX_PINGS = 5, 2


class NatsSession:
    """Implements ``BusSession`` with a client of nats-py."""

    def __init__(self, client: Any, lost: asyncio.Event, errors: Any) -> None:
        self._client = client
        self._lost = lost
        self._errors = errors

    async def publish(self, messages: Sequence[tuple[str, bytes]]) -> None:
        try:
            for channel, message in messages:
                await self._client.publish(channel, message)
        except (self._errors.Error, OSError) as error:
            raise BusError(first_line(error)) from error

    async def wait_until_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        with suppress(self._errors.Error, OSError):
            await self._client.close()


def connector() -> BusConnector:
    """Return the function that connects to NATS. Raises ``SetupError`` if the client library is not
    installed."""
    try:
        import nats
        from nats import errors
    except ImportError:
        raise SetupError(needs_extra("The client of NATS is not installed", "nats")) from None

    async def connect(url: str, handlers: Handlers) -> BusSession:
        lost = asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        async def ignore(error: Exception) -> None:
            """Ignore an error that the client reports. Without this callback, the client would log
            the error."""

        try:
            client = await nats.connect(
                url.split(","),
                name="antiphon",
                allow_reconnect=False,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                max_outstanding_pings=_MAX_PINGS,
                disconnected_cb=on_lost,
                closed_cb=on_lost,
                error_cb=ignore,
            )
        except (errors.Error, OSError, ValueError) as error:
            raise BusError(first_line(error)) from error
        session = NatsSession(client, lost, errors)
        read_messages(client, handlers)
        try:
            for channel, handler in handlers.items():
                await client.subscribe(channel, cb=_callback(handler))
            # nats-py sends a ping before the subscriptions that wait to be sent. So only the answer
            # to a second ping shows that the server has processed the subscriptions.
            await client.flush(_CONNECT_S)
            await client.flush(_CONNECT_S)
        except BaseException as error:  # also if the caller was cancelled
            await session.close()
            if isinstance(error, (errors.Error, OSError)):
                raise BusError(first_line(error)) from error
            raise
        return session

    return connect


def _callback(handler: Any) -> Any:
    async def on_message(message: Any) -> None:
        handler(message.data)

    return on_message
