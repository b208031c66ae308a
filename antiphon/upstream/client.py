"""One upstream: its address, its key, its connections, and patience with it.

A stream is begun again until its first payload has come; whoever reads it may begin it again until
that says something. It knows nothing of what is asked and answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import msgspec
import structlog

from antiphon.errors import BackendError, SetupError

from .errors import refusal
from .http import Answer, Connections
from .sse import MOST, Payloads

__all__ = ["RetryPolicy", "Upstream"]

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
_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": "antiphon",
}
_RETRIED = frozenset({408, 425, 429, *range(500, 600)} - {501, 505})


#: An answer, what reads it, and its first payloads.
_Begun = tuple[Answer, Payloads, list[bytes]]


class RetryPolicy:
    """With one question: how often, and after what pauses, it is asked again."""

    def __init__(self, root: str, pause: Callable[[float], Awaitable[object]]) -> None:
        self._root = root
        self._pause = pause
        self._attempt = 0
        self._is_over = False

    async def again(self, error: BackendError) -> None:
        """Wait before the next attempt. Raises the error where it lasts, or where it was tried
        often enough."""
        if error.lasting or self._is_over:
            raise error
        self._attempt += 1
        _log.warning(
            "upstream failed", upstream=self._root, attempt=self._attempt, error=str(error)
        )
        wait_s = error.retry_after_s
        if wait_s is None:
            wait_s = _FIRST_PAUSE_S * 2 ** (self._attempt - 1)
        self._is_over = self._attempt >= _ATTEMPTS or wait_s > _LONGEST_PAUSE_S
        if self._is_over:
            raise error
        await self._pause(wait_s)


class Upstream:
    """The server at ``url``. ``connect_s``: seconds for a connection; ``silence_s``: the longest
    silence of an answer, reading the prompt among it. ``pause``: sleeps, in tests not. Raises
    ``SetupError`` for an address or a header that is none."""

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
        if not url.startswith(("http://", "https://")):
            raise SetupError(f"{url!r} is no address of an upstream: it begins with http(s)://")
        self.url = url.rstrip("/")
        self._key = key
        headers = {**_HEADERS, **(headers or {})}
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            self._connections = Connections(headers, connect_s=connect_s, silence_s=silence_s)
        except ValueError as error:
            raise SetupError(f"the upstream {url!r} cannot be asked: {error}") from None
        self._pause = pause
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
        await self._connections.close()

    async def ask(self, url: str, body: Any = None, *, wait_s: float = 30) -> Any:
        """The JSON answer to a small question (a GET without ``body``). Tried once; raises
        ``BackendError``."""
        method = "GET" if body is None else "POST"
        encoded = b"" if body is None else msgspec.json.encode(body)
        self._check_open()
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._connections.ask(method, url, encoded)
                with closing(answer):
                    content = await _whole(answer)
            if answer.status != 200:
                raise self._hidden(refusal(answer.status, content))
            return msgspec.json.decode(content)
        except OSError as error:
            raise _unreached(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BackendError("The upstream's answer is no JSON.") from None

    def patience(self) -> RetryPolicy:
        """For one question that is asked until something of its answer can be read."""
        return RetryPolicy(self.root, self._pause)

    async def stream(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        patience: RetryPolicy | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads of a streamed answer, those that came together at a time; an empty list
        stands last for a stream that said it is done. Closing the iterator ends the request. Raises
        ``BackendError``."""
        patience = patience or self.patience()
        answer, reader, payloads = await self._begun(url, body, headers, patience)
        with closing(answer):
            try:
                while payloads:
                    yield payloads
                    payloads = await _next(answer, reader)
            except OSError as error:
                broken = _broken(error)
                _log.warning("upstream failed", upstream=self.root, error=str(broken))
                raise broken from None
            if reader.done:
                await _drain(answer)
        if reader.done:
            yield []

    async def _begun(
        self, url: str, body: bytes, headers: Mapping[str, str] | None, patience: RetryPolicy
    ) -> _Begun:
        """The answer up to its first payloads, after as many attempts as it takes."""
        while True:
            try:
                return await self._once(url, body, headers)
            except BackendError as error:
                await patience.again(error)

    async def _once(self, url: str, body: bytes, headers: Mapping[str, str] | None) -> _Begun:
        self._check_open()
        try:
            answer = await self._connections.ask("POST", url, body, headers)
        except OSError as error:
            raise _unreached(error) from None
        try:
            if answer.status != 200:
                await self._refuse(answer)
            reader = Payloads()
            if answer.media_type == "application/json":  # it was not streamed after all
                return answer, reader, [await _whole(answer)]
            payloads = await _next(answer, reader)
            if not payloads and not reader.done:
                raise BackendError("The upstream's answer broke off.")
            return answer, reader, payloads
        except OSError as error:
            answer.close()
            raise _broken(error) from None
        except BaseException:
            answer.close()
            raise

    async def _refuse(self, answer: Answer) -> None:
        body = bytearray()
        with suppress(OSError):  # what has come will do
            async with asyncio.timeout(_ERROR_S):
                while len(body) < _ERROR_BYTES and (received := await answer.read()):
                    body += received
        error = self._hidden(refusal(answer.status, bytes(body)))
        if answer.status in _RETRIED and not error.lasting:
            error.retry_after_s = _asked_wait(answer.headers.get("retry-after"))
            raise error
        _log.warning("upstream refused", upstream=self.root, status=answer.status, error=str(error))
        error.lasting = True
        raise error

    def _hidden(self, error: BackendError) -> BackendError:
        """The error, without the key that some upstreams repeat."""
        if self._key:
            error.message = error.message.replace(self._key, "…")
            error.args = (error.message,)
        return error

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("The upstream's connections are closed.", lasting=True)


async def _next(answer: Answer, reader: Payloads) -> list[bytes]:
    """What comes next; nothing at the end."""
    while not reader.done:
        received = await answer.read()
        if not received:
            return reader.finish()
        if payloads := reader.feed(received):
            return payloads
    return []


async def _whole(answer: Answer) -> bytes:
    """A body that is no stream."""
    content = bytearray()
    while received := await answer.read():
        content += received
        if len(content) > MOST:
            raise BackendError("The upstream's answer is too long.", lasting=True)
    return bytes(content)


async def _drain(answer: Answer) -> None:
    """Read what is left behind ``[DONE]``: most often nothing, or nothing but the end."""
    if not answer.is_read:
        with suppress(OSError):  # all has been said
            async with asyncio.timeout(_LAST_S):
                while await answer.read():
                    pass


def _asked_wait(value: str | None) -> float | None:
    """Seconds of a ``Retry-After``; dates are left to our own pause."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _unreached(error: OSError) -> BackendError:
    return BackendError(f"The upstream cannot be reached: {_why(error)}.")


def _broken(error: OSError) -> BackendError:
    return BackendError(f"The upstream's answer broke off: {_why(error)}.")


def _why(error: OSError) -> str:
    """Without addresses: clients read it."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ConnectionRefusedError):
        return "it does not listen"
    return "the connection failed"
