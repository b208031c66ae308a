"""HTTP client for llama.cpp's server, which runs in a process of its own.

It listens on a Unix socket, or on Windows at a port of this machine. Each request has its own
connection, so closing the connection aborts the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from antiphon.errors import BackendError
from antiphon.upstream.exchange import Connection
from antiphon.upstream.sse import SseParser

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.encode
#: Seconds without data after which a request fails. A long prompt on a slow machine takes hours.
_SILENCE_S = 86_400.0


class LlamaClient:
    """Client for the server at an address. ``host``: the path of its Unix socket if ``port`` is 0,
    or else its host name. ``key``: the API key."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self.host, self.port = host, port
        self._key = key

    async def generate(self, body: bytes, on_event: Callable[[bytes], bool]) -> None:
        """Run one generation. ``body``: the request, as JSON. ``on_event`` is called with each
        event, as JSON, and returns True to abort the generation.

        Raises ``ConnectionError`` if the server ends meanwhile.
        """
        events = SseParser()

        def read(part: bytes) -> bool:
            return any(map(on_event, events.feed(part)))

        if await self._send("POST", "/completion", body, read) != 200:
            on_event(b"".join(events.finish()))  # the error

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
        await self._send(method, target, body, received.extend)
        return _decode(received)

    async def _send(
        self, method: str, target: str, body: bytes, on_body: Callable[[bytes], bool | None]
    ) -> int:
        """Send a request and return the status code of the response. ``on_body`` is called with
        each part of the response's body, and returns True if the rest is not needed."""
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: llama\r\nconnection: close\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        connection = Connection(loop.time)
        if self.port:
            await loop.create_connection(lambda: connection, self.host, self.port)
        else:
            await loop.create_unix_connection(lambda: connection, self.host)
        try:
            exchange = connection.send(head.encode("ascii"), body, _SILENCE_S)
            await exchange.wait_for_head()
            with suppress(_Enough):
                await exchange.pump(partial(_take, on_body))
            return exchange.status
        finally:
            connection.fail(ConnectionError("the response was closed"))


class _Enough(Exception):
    """Raised by the sink of a response, if the rest of the response is not needed."""


def _take(on_body: Callable[[bytes], bool | None], part: bytes) -> None:
    if on_body(part):
        raise _Enough
