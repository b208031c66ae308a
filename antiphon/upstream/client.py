"""HTTP client of one upstream: address, key, connections and retries.

A request is retried until its first payload arrives. The caller may retry later errors with the
same ``RetryPolicy``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import closing, suppress
from typing import Any

import msgspec
import structlog

from antiphon.errors import BackendError, SetupError

from .errors import error_from_response
from .http import HttpClient, HttpResponse
from .retries import RetryPolicy, UpstreamHealth
from .sse import MAX_RESPONSE_BYTES, SseParser

__all__ = ["RetryPolicy", "Upstream"]

_log = structlog.get_logger(__name__)

#: Seconds to wait for the end of the body after ``[DONE]``, so that the connection can be reused.
_DRAIN_S = 0.25
#: The most bytes of an error response that are read, and the seconds to read them.
_ERROR_BYTES, _ERROR_S = 64 * 1024, 5.0
_HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": "antiphon",
}


#: A response, its parser, and its first payloads.
_StartedStream = tuple[HttpResponse, SseParser, list[bytes]]


class Upstream:
    """The server at ``url``.

    ``connect_s``: seconds for a connection. ``silence_s``: the longest time in seconds without
    data, including the time for the prompt. ``pause``: how to sleep; tests replace it. Raises
    ``SetupError`` for an invalid address or header.
    """

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
            raise SetupError(f"invalid upstream address {url!r}: it must begin with http(s)://")
        self.url = url.rstrip("/")
        self._key = key
        headers = {**_HEADERS, **(headers or {})}
        if key:
            headers["authorization"] = f"Bearer {key}"
        try:
            self._client = HttpClient(headers, connect_s=connect_s, silence_s=silence_s)
        except ValueError as error:
            raise SetupError(f"the upstream {url!r} cannot be used: {error}") from None
        self._pause = pause
        self._health = UpstreamHealth()
        self._closed = False

    @property
    def root(self) -> str:
        """The address without a final ``/v1``: the base of routes that are not OpenAI's."""
        return self.url.removesuffix("/v1")

    @property
    def versioned(self) -> str:
        """The base address of OpenAI's routes; ``/v1`` is added if the address has no path."""
        path = self.url.partition("://")[2].partition("/")[2]
        return self.url if path else f"{self.url}/v1"

    async def close(self) -> None:
        """Close all connections. Later requests fail."""
        self._closed = True
        await self._client.close()

    async def request_json(self, url: str, body: Any = None, *, wait_s: float = 30) -> Any:
        """Send a short request and return the JSON response. Without ``body`` it is a GET. Not
        retried. Raises ``BackendError``.
        """
        method = "GET" if body is None else "POST"
        encoded = b"" if body is None else msgspec.json.encode(body)
        self._check_open()
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._client.request(method, url, encoded)
                with closing(answer):
                    content = await _read_all(answer)
            if answer.status != 200:
                raise self._redact_key(error_from_response(answer.status, content))
            return msgspec.json.decode(content)
        except OSError as error:
            raise _connect_error(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BackendError("The upstream's response is not JSON.") from None

    def retry_policy(self) -> RetryPolicy:
        """A new retry policy for one request."""
        return RetryPolicy(self.root, self._pause, self._health)

    async def stream(
        self,
        url: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> AsyncGenerator[list[bytes], None]:
        """The payloads of a streamed response, in batches as they arrive.

        The last batch is empty if the stream ended with ``[DONE]``. Closing the iterator ends the
        request. Raises ``BackendError``.
        """
        retry_policy = retry_policy or self.retry_policy()
        answer, reader, payloads = await self._start(url, body, headers, retry_policy)
        with closing(answer):
            try:
                while payloads:
                    yield payloads
                    payloads = await _next_payloads(answer, reader)
            except OSError as error:
                broken = _read_error(error)
                _log.warning("upstream failed", upstream=self.root, error=str(broken))
                raise broken from None
            if reader.done:
                await _drain(answer)
        if reader.done:
            yield []

    async def _start(
        self, url: str, body: bytes, headers: Mapping[str, str] | None, retry_policy: RetryPolicy
    ) -> _StartedStream:
        """The response up to its first payloads, after as many attempts as allowed."""
        while True:
            try:
                started = await self._attempt(url, body, headers)
                retry_policy.accept()
                return started
            except BackendError as error:
                await retry_policy.wait_before_retry(error)

    async def _attempt(
        self, url: str, body: bytes, headers: Mapping[str, str] | None
    ) -> _StartedStream:
        self._check_open()
        try:
            answer = await self._client.request("POST", url, body, headers)
        except OSError as error:
            raise _connect_error(error) from None
        try:
            if answer.status != 200:
                await self._raise_error(answer)
            reader = SseParser()
            if answer.media_type == "application/json":  # the server did not stream
                return answer, reader, [await _read_all(answer)]
            payloads = await _next_payloads(answer, reader)
            if not payloads and not reader.done:
                raise BackendError("The upstream's answer broke off.")
            return answer, reader, payloads
        except OSError as error:
            answer.close()
            raise _read_error(error) from None
        except BaseException:
            answer.close()
            raise

    async def _raise_error(self, answer: HttpResponse) -> None:
        body = bytearray()
        with suppress(OSError):  # the part received so far is enough
            async with asyncio.timeout(_ERROR_S):
                while len(body) < _ERROR_BYTES and (received := await answer.read()):
                    body += received
        error = self._redact_key(error_from_response(answer.status, bytes(body)))
        if not error.permanent:
            error.retry_after_s = _retry_after_s(answer.headers.get("retry-after"))
            raise error
        _log.warning("upstream refused", upstream=self.root, status=answer.status, error=str(error))
        raise error

    def _redact_key(self, error: BackendError) -> BackendError:
        """Remove the key from an error message: some upstreams repeat it."""
        if self._key:
            error.message = error.message.replace(self._key, "…")
            error.args = (error.message,)
        return error

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("The upstream's connections are closed.", permanent=True)


async def _next_payloads(answer: HttpResponse, reader: SseParser) -> list[bytes]:
    """The next payloads; empty at the end."""
    while not reader.done:
        received = await answer.read()
        if not received:
            return reader.finish()
        if payloads := reader.feed(received):
            return payloads
    return []


async def _read_all(answer: HttpResponse) -> bytes:
    """Read a body that is not streamed."""
    content = bytearray()
    while received := await answer.read():
        content += received
        if len(content) > MAX_RESPONSE_BYTES:
            raise BackendError("The upstream's answer is too long.", permanent=True)
    return bytes(content)


async def _drain(answer: HttpResponse) -> None:
    """Read what follows ``[DONE]``, most often nothing, so that the connection can be reused."""
    if not answer.is_read:
        with suppress(OSError):  # the response is already complete
            async with asyncio.timeout(_DRAIN_S):
                while await answer.read():
                    pass


def _retry_after_s(value: str | None) -> float | None:
    """The seconds of a ``Retry-After`` header; None for a date."""
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None


def _connect_error(error: OSError) -> BackendError:
    return BackendError(f"The upstream cannot be reached: {_reason(error)}.")


def _read_error(error: OSError) -> BackendError:
    return BackendError(f"The upstream's answer broke off: {_reason(error)}.")


def _reason(error: OSError) -> str:
    """The reason of a connection error, without addresses: clients see it."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ConnectionRefusedError):
        return "it does not listen"
    return "the connection failed"
