"""While the client is there: a block of code that ends when the client hangs up.

The block is cancelled in the way ``asyncio.timeout`` does it. Our server says when a connection is
lost (``DEPARTURES``); another one only tells who asks ``receive``, so a task asks. It knows nothing
of what the block does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from starlette.types import Receive, Scope

from antiphon.http.middleware.request_context import ClientDisconnected

__all__ = ["DEPARTURES", "CancelOnDisconnect", "ConnectionLost"]

#: Our server's ASGI extension, whose ``connection`` is ``Departures``.
DEPARTURES = "antiphon.departures"


class ConnectionLost(Protocol):
    """Of one connection: whoever is in ``watching`` is called when it is lost."""

    watching: set[Callable[[], None]]
    is_lost: bool


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class CancelOnDisconnect:
    """``async with Presence(scope, receive):`` raises ``ClientLeft`` when the client leaves.

    The request's body must have been read, and the last piece of the answer must be sent after the
    block: a server may report the end of the context as a departure.
    """

    __slots__ = ("_block", "_cancelling", "_connection", "_left", "_receive", "_watch")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        offered = scope.get("extensions", {}).get(DEPARTURES, {})
        self._connection: ConnectionLost | None = offered.get("connection")
        self._receive = receive
        self._left = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        block = asyncio.current_task()
        assert block is not None
        self._block = block
        self._cancelling = block.cancelling()
        if self._connection is None:
            self._watch = asyncio.create_task(_departure(self._receive))
            self._watch.add_done_callback(self._told)
            return
        self._connection.watching.add(self._departed)
        if self._connection.is_lost:
            self._departed()

    def _told(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # a server whose receive breaks has lost the client just as well
            self._departed()

    def _departed(self) -> None:
        self._left = True
        self._block.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.watching.discard(self._departed)
        if self._watch is not None:
            self._watch.remove_done_callback(self._told)
            self._watch.cancel()
        if (
            self._left
            and self._block.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise ClientDisconnected from None
