"""A streamed answer: its head, its pieces, its end.

A piece goes straight to the connection where the server lets it (``server.STRAIGHT``): a message
and a coroutine for every token would cost as much as all that comes before them. It knows neither
events nor runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Message, Scope, Send

from antiphon.http.middleware.request_context import ClientDisconnected

from . import sse

__all__ = ["STRAIGHT", "DirectWrite", "Stream"]

#: Our server's ASGI extension: ``write`` takes pieces of a body that has begun.
STRAIGHT = "antiphon.straight"

#: Writes a piece of a body without a declared length. False: it has to go by ``send``, which waits
#: for a reader who lags behind.
DirectWrite = Callable[[bytes], bool]


def _never(piece: bytes) -> bool:
    return False


class Stream:
    """One answer. Raises ``ClientLeft`` where the server says that nobody is there."""

    __slots__ = ("_send", "_straight", "begun")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.begun = False
        offered = scope.get("extensions", {}) if scope["method"] != "HEAD" else {}
        self._straight: DirectWrite = offered.get(STRAIGHT, {}).get("write", _never)

    async def begin(self, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """The head, which comes first."""
        self.begun = True
        await self._sent(
            {"type": "http.response.start", "status": 200, "headers": [*sse.HEADERS, *headers]}
        )

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """A piece. What is returned is to be awaited before the next one."""
        if self._straight(piece):
            return None
        return self._sent({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        """The last line, with the piece before it."""
        await self._sent({"type": "http.response.body", "body": piece + sse.DONE})

    async def _sent(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise ClientDisconnected from None
