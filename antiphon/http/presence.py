"""While the client is there: a block of code that ends when the client hangs up.

ASGI tells of a departure only to who asks ``receive``, so one task asks and cancels the block, in
the way ``asyncio.timeout`` does. It knows nothing of what the block does.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from .exchange import ClientLeft

__all__ = ["Presence"]


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Presence:
    """``async with Presence(receive):`` raises ``ClientLeft`` when the client leaves inside it.

    The request's body must have been read, and the last piece of the answer must be sent after the
    block: a server may report the end of the exchange as a departure.
    """

    __slots__ = ("_block", "_cancelling", "_left", "_receive", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    async def __aenter__(self) -> None:
        block = asyncio.current_task()
        assert block is not None
        self._block = block
        self._cancelling = block.cancelling()
        self._watch = asyncio.create_task(_departure(self._receive))
        self._watch.add_done_callback(self._departed)

    def _departed(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # a server whose receive breaks has lost the client just as well
            self._left = True
            self._block.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.remove_done_callback(self._departed)
        self._watch.cancel()
        if (
            self._left
            and self._block.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise ClientLeft from None
