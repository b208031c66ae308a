"""HTTP client for llama.cpp's server, which runs in a process of its own and listens on a Unix
socket. Each request has its own connection, so closing the connection aborts the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec

from antiphon.errors import BackendError

__all__ = ["LlamaClient"]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
_FRAME, _END = b"data: ", b"\n\n"


class LlamaClient:
    """Client for the server on the Unix socket ``path``. ``key``: the API key."""

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self._key = key

    async def generate(self, body: bytes, on_event: Callable[[bytes], bool]) -> None:
        """Run one generation. ``body``: the request, as JSON. ``on_event`` is called with each
        event, as JSON, and returns True to abort the generation.

        Raises ``ConnectionError`` if the server ends meanwhile.
        """
        events = _Events(on_event)
        exchange = _Exchange(self._request("POST", "/completion", body), events.feed)
        if await exchange.run(self.path) != 200:
            on_event(bytes(events.unread))

    async def post(self, target: str, body: Any) -> Any:
        """Send a request and return the JSON value of the response, which may be an object with the
        field ``error``. Raises ``ConnectionError`` if the server ends meanwhile."""
        return await self._call("POST", target, _encode(body))

    async def get(self, target: str) -> Any:
        """See ``post``."""
        return await self._call("GET", target)

    async def count_tokens(self, prompt: dict[str, Any]) -> int:
        """Return the number of tokens of a prompt with images. Raises ``BackendError`` if llama.cpp
        cannot read the prompt."""
        found: list[Any] = []

        def read(event: bytes) -> bool:
            found.append(_decode(event))
            return True  # the count is reported before anything is computed

        request = {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True}
        await self.generate(_encode(request), read)
        if not found or "error" in found[0]:
            problem = found[0]["error"]["message"] if found else "The engine returned nothing."
            raise BackendError(str(problem))
        return int(found[0]["prompt_progress"]["total"])

    async def _call(self, method: str, target: str, body: bytes = b"") -> Any:
        received = bytearray()
        exchange = _Exchange(
            self._request(method, target, body), lambda part: received.extend(part)
        )
        await exchange.run(self.path)
        return _decode(received)

    def _request(self, method: str, target: str, body: bytes) -> bytes:
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: llama\r\nconnection: close\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body


class _Events:
    """Splits a stream of server-sent events. ``on_event``: called with the data of each event.
    ``unread``: bytes that are not yet a complete event."""

    def __init__(self, on_event: Callable[[bytes], bool]) -> None:
        self._on_event = on_event
        self.unread = bytearray()

    def feed(self, part: bytes) -> bool:
        """Read the next bytes. Return whether the rest of the stream is not needed."""
        if not self.unread and part.startswith(_FRAME) and part.find(_END) == len(part) - 2:
            return self._on_event(part[len(_FRAME) : -len(_END)])  # exactly one event, as usual
        self.unread += part
        while (end := self.unread.find(_END)) >= 0:
            frame = bytes(self.unread[:end])
            del self.unread[: end + len(_END)]
            if frame.startswith(_FRAME) and self._on_event(frame[len(_FRAME) :]):
                return True
        return False


class _Exchange(asyncio.Protocol):
    """One request and its response, on a connection of its own. ``on_body``: called with each part
    of the response's body. If it returns True, the connection is closed."""

    def __init__(self, request: bytes, on_body: Callable[[bytes], bool | None]) -> None:
        self._request = request
        self._on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.WriteTransport | None = None

    async def run(self, path: str) -> int:
        """Send the request to the Unix socket ``path``, and wait until the response is read.
        Returns its status code. Raises ``ConnectionError``."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: self, path)
        try:
            return await self._done
        finally:
            transport.abort()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(self._parser.get_status_code())

    # --- called by the event loop and by the parser ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check of the class: the transports of uvloop are not subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._done.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("The connection was closed."))

    def on_body(self, part: bytes) -> None:
        if not self._done.done() and self._on_body(part):
            self._finish()

    def on_message_complete(self) -> None:
        self._finish()

    def _fail(self, error: Exception) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(str(error)))
