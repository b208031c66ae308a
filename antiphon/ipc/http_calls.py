"""RPC calls to processes of other Antiphon servers over HTTP, signed with a shared secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from antiphon.errors import PeerLost

from .frames import LENGTH_BYTES, frame_length
from .http_endpoint import CALLS_PATH, KEEPALIVE_S
from .messages import CallMessage, MessageKind, call_message, decode_error
from .signatures import CallSigner, content_digest

if TYPE_CHECKING:
    import aiohttp

_log = structlog.get_logger(__name__)
_CONNECT_S = 5.0
_decode = msgspec.msgpack.Decoder(CallMessage).decode


class HttpCaller:
    """Sends signed RPC calls to other Antiphon servers over HTTP. Needs the package aiohttp."""

    def __init__(self, signer: CallSigner) -> None:
        self._signer = signer
        self._session: aiohttp.ClientSession | None = None

    def calls(self, owner: str, url: str) -> HttpCalls:
        """Return a client for calls to one process of another server. ``owner``: the id of the
        process. ``url``: the URL of its server."""
        return HttpCalls(self, owner, url)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def post(self, owner: str, url: str, body: bytes) -> Any:
        """Send a signed call to the process ``owner`` of the server at ``url``. ``body``: the
        encoded call. Returns an async context manager for the HTTP response."""
        headers = self._signer.sign(owner, content_digest(body))
        target = f"{url.rstrip('/')}{CALLS_PATH}{owner}"
        return self._open().post(target, data=body, headers=headers, allow_redirects=False)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_S, sock_read=3 * KEEPALIVE_S
                ),
                # Connections are not reused: the server may close them, and calls are not repeated.
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                auto_decompress=False,
            )
        return self._session


class HttpCalls:
    """``Calls`` to one process over HTTP. Each call is a separate request. ``owner``: the id of the
    process. ``url``: the URL of its server."""

    def __init__(self, caller: HttpCaller, owner: str, url: str) -> None:
        self._caller = caller
        self._owner = owner
        self._url = url

    async def call(self, method: str, *arguments: object, returns: object = None) -> Any:
        async with aclosing(self._answers(method, arguments)) as answers:
            async for message in answers:
                return msgspec.msgpack.decode(message.payload, type=returns)
        raise PeerLost(is_gone=False)

    async def stream(
        self, method: str, *arguments: object, returns: object
    ) -> AsyncGenerator[Any, None]:
        decode = msgspec.msgpack.Decoder(returns).decode
        async with aclosing(self._answers(method, arguments)) as answers:
            async for message in answers:
                if message.kind is not MessageKind.ITEM:
                    return
                yield decode(message.payload)
        raise PeerLost(is_gone=False)

    async def _answers(
        self, method: str, arguments: tuple[object, ...]
    ) -> AsyncGenerator[CallMessage, None]:
        """Send a call. Yield the items that the method yields, and then its result. Raises the
        error of the method, or ``PeerLost``."""
        import aiohttp

        body = call_message(1, method, arguments)
        try:
            async with self._caller.post(self._owner, self._url, body) as response:
                if response.status != 200:
                    _log.warning("a server refuses a call", url=self._url, status=response.status)
                    raise PeerLost(is_gone=False)
                while True:
                    message = _decode(await _read_frame(response.content))
                    if message.kind is MessageKind.ERROR:
                        raise decode_error(message.payload)
                    yield message
        except aiohttp.ClientConnectorError as error:
            is_refused = isinstance(error.os_error, ConnectionRefusedError)
            raise PeerLost(is_gone=is_refused) from None
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, ValueError):
            raise PeerLost(is_gone=False) from None


async def _read_frame(content: aiohttp.StreamReader) -> bytes:
    """Return the next frame that is not empty. While a call runs, the server that executes it
    regularly sends empty frames."""
    length = 0
    while not length:
        length = frame_length(await content.readexactly(LENGTH_BYTES))
    return await content.readexactly(length)
