"""The connection of a process to a message bus. It is opened again whenever it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from antiphon.support.tasks import BackgroundTasks, Backoff, running

from .base import BusConnector, BusError, BusSession, Handlers, MessageSigner

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
