"""One upstream: its address, its key, its connections, and patience with it.

A stream is begun again until its first payload has come; after that, what breaks off is an error.
It knows nothing of what is asked and answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from antiphon.errors import BackendError, SetupError

from .payloads import MOST, Payloads
from .refusals import refusal

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Upstream"]

_log = structlog.get_logger(__name__)

_ATTEMPTS = 4
#: Seconds before the second attempt; each later one waits twice as long.
_FIRST_PAUSE_S = 0.25
#: Longer than this nobody waits because an upstream says so.
_LONGEST_PAUSE_S = 20.0
#: Seconds for the end of a stream that has said it is done, so that its connection serves again.
_LAST_S = 0.25
#: Bytes of an error that are read, and seconds for them.
_ERROR_BYTES, _ERROR_S = 64 * 1024, 5.0
#: All that aiohttp would add by itself, which costs more than to say it.
_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": "antiphon",
}
_RETRIED = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})


class _Again(Exception):
    """It failed in a way that may pass. ``wait_s``: what the upstream asks to wait."""

    def __init__(self, error: BackendError, wait_s: float | None = None) -> None:
        self.error = error
        self.wait_s = wait_s


class Upstream:
    """The server at ``url``. ``connect_s``: seconds for a connection; ``silence_s``: the longest
    silence of an answer, reading the prompt among it. ``pause``: sleeps, in tests not. Raises
    ``SetupError`` for an address that is none, or without the extra."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        connect_s: float = 10,
        silence_s: float = 600,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        _require()
        if not url.startswith(("http://", "https://")):
            raise SetupError(f"{url!r} is no address of an upstream: it begins with http(s)://")
        self.url = url.rstrip("/")
        self._key = key
        self._headers = {**_HEADERS, **(headers or {})}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._times = (connect_s, silence_s)
        self._pause = pause
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def root(self) -> str:
        """The address without a version at its end: where servers have what is not OpenAI's."""
        return self.url.removesuffix("/v1")

    @property
    def versioned(self) -> str:
        """The address under which OpenAI's routes are; ``/v1`` where no path was given."""
        path = self.url.partition("://")[2].partition("/")[2]
        return self.url if path else f"{self.url}/v1"

    async def close(self) -> None:
        """End all connections; later requests fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def ask(self, url: str, body: Any = None, *, wait_s: float = 30) -> Any:
        """The JSON answer to a small question (a GET without ``body``). Tried once; raises
        ``BackendError``."""
        import aiohttp

        encoded = None if body is None else msgspec.json.encode(body)
        try:
            async with (
                asyncio.timeout(wait_s),
                self._open_session().request(
                    "GET" if body is None else "POST",
                    url,
                    data=encoded,
                    headers=self._headers,
                    allow_redirects=False,
                ) as response,
            ):
                content = await _whole(response)
                if response.status != 200:
                    raise self._hidden(refusal(response.status, content))
                return msgspec.json.decode(content)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BackendError(f"The upstream cannot be reached: {_why(error)}.") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BackendError("The upstream's answer is no JSON.") from None

    async def stream(
        self, url: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads of a streamed answer, those that came together at a time; an empty list
        stands last for a stream that said it is done. Closing the iterator ends the request. Raises
        ``BackendError``."""
        headers = {**self._headers, **headers} if headers else self._headers
        attempt = 0
        while True:
            begun = False
            try:
                async with aclosing(self._once(url, body, headers)) as batches:
                    async for payloads in batches:
                        begun = True
                        yield payloads
                if begun:
                    return
                raise _Again(BackendError("The upstream's answer broke off."))
            except _Again as again:
                attempt += 1
                wait_s = again.wait_s
                if wait_s is None:
                    wait_s = _FIRST_PAUSE_S * 2 ** (attempt - 1)
                _log.warning(
                    "upstream failed", upstream=self.root, attempt=attempt, error=str(again.error)
                )
                if begun or attempt >= _ATTEMPTS or wait_s > _LONGEST_PAUSE_S or self._closed:
                    raise again.error from None
            await self._pause(wait_s)

    async def _once(
        self, url: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[list[bytes], None]:
        import aiohttp

        try:
            response = await self._open_session().post(
                url, data=body, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = _why(error)
            raise _Again(BackendError(f"The upstream cannot be reached: {reason}.")) from None
        try:
            if response.status != 200:
                await self._refuse(response)
            if response.content_type == "application/json":  # it was not streamed after all
                yield [await _whole(response)]
                return
            reader = Payloads()
            content = response.content
            while received := await content.readany():
                if payloads := reader.feed(received):
                    yield payloads
                if reader.done:
                    break
            if not reader.done and (payloads := reader.finish()):
                yield payloads
            if reader.done:
                await _drain(response)
                yield []
        except (aiohttp.ClientError, TimeoutError, OSError, RuntimeError) as error:
            # RuntimeError: the connection was closed on this side
            reason = _why(error)
            raise _Again(BackendError(f"The upstream's answer broke off: {reason}.")) from None
        finally:
            response.close()  # ends the request; nothing where all of it was read

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        try:
            async with asyncio.timeout(_ERROR_S):
                body = await response.content.read(_ERROR_BYTES)
        except TimeoutError:
            body = b""
        error = self._hidden(refusal(response.status, body))
        if response.status in _RETRIED and not error.lasting:
            error.retry_after_s = _asked_wait(response.headers.get("retry-after"))
            raise _Again(error, error.retry_after_s)
        _log.warning(
            "upstream refused", upstream=self.root, status=response.status, error=str(error)
        )
        raise error

    def _hidden(self, error: BackendError) -> BackendError:
        """The error, without the key that some upstreams repeat."""
        if self._key:
            error.message = error.message.replace(self._key, "…")
            error.args = (error.message,)
        return error

    def _open_session(self) -> aiohttp.ClientSession:
        """Made in the loop that uses it."""
        import aiohttp

        if self._closed:
            raise BackendError("The upstream's connections are closed.")
        if self._session is None:
            connect_s, silence_s = self._times
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=connect_s, sock_read=silence_s
                ),
                auto_decompress=False,
            )
        return self._session


def _require() -> None:
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise SetupError('Upstreams need a package: pip install "antiphon[upstream]"') from None


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """A body that is no stream."""
    content = bytearray()
    while received := await response.content.readany():
        content += received
        if len(content) > MOST:
            raise BackendError("The upstream's answer is too long.")
    return bytes(content)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read what is left behind ``[DONE]``: most often nothing, or nothing but the end."""
    if response.content.is_eof():
        return
    try:
        async with asyncio.timeout(_LAST_S):
            while await response.content.readany():
                pass
    except TimeoutError:
        pass


def _asked_wait(value: str | None) -> float | None:
    """Seconds of a ``Retry-After``; dates are left to our own pause."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _why(error: Exception) -> str:
    """Without addresses: clients read it."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ConnectionRefusedError):
        return "it does not listen"
    return "the connection failed"
