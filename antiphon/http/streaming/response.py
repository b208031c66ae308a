"""A streamed HTTP response: headers, chunks of the body, end.

Chunks go directly to the connection if the ASGI server offers ``DIRECT_WRITE_EXTENSION``. Without
this extension, each token needs an ASGI message and a coroutine. These cost as much time as all
earlier processing of the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from starlette.types import Message, Scope, Send

from antiphon.http.middleware.request_context import ClientDisconnected

from . import sse

#: Headers of a stream with one JSON object per line.
JSON_LINES_HEADERS = ((b"content-type", b"application/x-ndjson"), *sse.HEADERS[1:])

#: ASGI extension of Antiphon's server: its ``write`` takes chunks of a body after the headers.
DIRECT_WRITE_EXTENSION = "antiphon.direct_write"

#: Writes a chunk of a body without a declared length. Returns False if the chunk must go through
#: ``send``, which waits for a slow reader.
DirectWrite = Callable[[bytes], bool]


def _decline(piece: bytes) -> bool:
    return False


class StreamFormat(Struct, frozen=True, kw_only=True):
    """How an API frames its streams. ``end_mark``: the bytes that end a stream. ``comment``: the
    bytes that keep an idle stream open."""

    headers: Sequence[tuple[bytes, bytes]] = sse.HEADERS
    end_mark: bytes = sse.DONE
    comment: bytes = sse.COMMENT


class EventStream:
    """A streamed response, by default a ``text/event-stream``. Its methods raise
    ``ClientDisconnected`` if the client has disconnected. ``headers``: the headers of the format.
    """

    __slots__ = ("_direct_write", "_headers", "_send", "has_started")

    def __init__(
        self, scope: Scope, send: Send, headers: Sequence[tuple[bytes, bytes]] = sse.HEADERS
    ) -> None:
        self._send = send
        self._headers = headers
        self.has_started = False
        offered = scope.get("extensions", {}) if scope["method"] != "HEAD" else {}
        self._direct_write: DirectWrite = offered.get(DIRECT_WRITE_EXTENSION, {}).get(
            "write", _decline
        )

    async def start(self, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Send the status line and the headers."""
        self.has_started = True
        await self._send_message(
            {"type": "http.response.start", "status": 200, "headers": [*self._headers, *headers]}
        )

    def write(self, piece: bytes) -> Awaitable[None] | None:
        """Write a chunk. Returns None if the chunk was written at once. Otherwise returns an
        awaitable that writes the chunk. The caller must await it before the next write."""
        if self._direct_write(piece):
            return None
        return self._send_message({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"", mark: bytes = sse.DONE) -> None:
        """Write ``piece`` and ``mark``, and end the response. ``piece``: the last chunk. ``mark``:
        the bytes that tell the client that the stream is complete."""
        await self._send_message({"type": "http.response.body", "body": piece + mark})

    async def _send_message(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            raise ClientDisconnected from None
