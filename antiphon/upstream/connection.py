"""A connection to an upstream: HTTP/1.1, one request at a time. llhttp parses the responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import httptools

__all__ = ["HttpConnection", "HttpResponse"]

#: Bytes of a response that wait to be read, above which the connection is not read.
_MAX_BUFFERED_BYTES = 2**18
#: The most bytes of a status line and headers.
_MAX_HEAD_BYTES = 2**16


class HttpResponse:
    """A response that is still being received. ``headers``: by lower-case names; the first one of
    each name."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._is_complete = False
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def media_type(self) -> str:
        """The media type of the body, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self._is_complete and not self._pieces

    async def read(self) -> bytes:
        """Read all bytes that have arrived; empty at the end. Raises ``OSError`` if the connection
        breaks, ``TimeoutError`` after too long without data.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            await self._wait()
        content = b"".join(self._pieces)
        self._pieces.clear()
        if not self._is_complete:
            self._connection.resume()
        return content

    def close(self) -> None:
        """Stop reading. Closes the connection if the body is incomplete."""
        if not self._is_complete:
            self._connection.fail(ConnectionError("the response is closed"))

    # --- for the connection ----------------------------------------------------------------------

    async def wait_for_head(self) -> None:
        """Wait until the headers have arrived. Raises as ``read``."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for data."""
        return self._waiter is not None

    def add(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._pieces.append(piece)

    def end(self, error: OSError | None = None) -> None:
        """End the body, or break it off."""
        self._is_complete, self._error = error is None, error

    def wake(self) -> None:
        """Tell who waits that something has arrived."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        self._connection.on_wait()
        try:
            await self._waiter
        finally:
            self._waiter = None


class HttpConnection(asyncio.Protocol):
    """A connection. ``silence_s``: the longest time in seconds without data while somebody waits
    for it. ``on_free`` is called when the response is complete and another request can be sent,
    ``on_lost`` when none can be sent any more."""

    def __init__(
        self,
        silence_s: float,
        on_free: Callable[[HttpConnection], None],
        on_lost: Callable[[HttpConnection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._response: HttpResponse | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._buffered = 0
        self._is_paused = False
        self.is_lost = False

    def send(self, head: bytes, body: bytes) -> HttpResponse:
        """Send a request and return its response, whose headers have not arrived yet."""
        self._response = response = HttpResponse(self)
        self._parser = httptools.HttpResponseParser(self)
        self._head: dict[str, str] = {}
        self._head_bytes = 0
        self._is_message_complete = self._is_reusable = False
        self._heard_at = self._loop.time()
        self._silence_timer = self._loop.call_later(self._silence_s, self._check_silence)
        if len(body) < _MAX_HEAD_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def close(self) -> None:
        """Close a connection without a request."""
        self.fail(ConnectionError("the connections are closed"))

    def fail(self, error: OSError) -> None:
        """Break the response off and close the connection."""
        if not self.is_lost:
            self.is_lost = True
            self._transport.abort()
            self._end(error)
            self._on_lost(self)

    def resume(self) -> None:
        """All data that has arrived was read."""
        self._buffered = 0
        if self._is_paused and not self.is_lost:
            self._is_paused = False
            self._transport.resume_reading()

    def on_wait(self) -> None:
        """Somebody waits for data from now on."""
        self._heard_at = self._loop.time()

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # nothing was asked for
            return self.fail(ConnectionError("the server sent more than its response"))
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return self.fail(ConnectionError(f"the server does not speak HTTP/1.1: {error}"))
        if not response.status:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                return self.fail(ConnectionError("the server sends endless headers"))
        if self._is_message_complete:
            self._end_message(response)
        elif self._buffered > _MAX_BUFFERED_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        response.wake()

    def connection_lost(self, error: Exception | None) -> None:
        response = self._response
        if response is not None and response.status and not _has_length(response.headers):
            self._end(None)  # RFC 9112 6.3: this body ends with the connection
        self.fail(ConnectionError(f"the server closed the connection ({error})"))

    # --- llhttp ----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._response is not None:
            self._response.status, self._response.headers = status, self._head

    def on_body(self, body: bytes) -> None:
        self._buffered += len(body)
        if self._response is not None:
            self._response.add(body)

    def on_message_complete(self) -> None:
        if self._response is not None and self._response.status:
            self._is_message_complete = True
            self._is_reusable = self._parser.should_keep_alive()
        self._head = {}  # of an interim response

    # --- ends ------------------------------------------------------------------------------------

    def _end_message(self, response: HttpResponse) -> None:
        self._end(None)
        if self._is_reusable:
            self._on_free(self)
        else:
            self.fail(ConnectionError("the server closes the connection"))

    def _end(self, error: OSError | None) -> None:
        """End the response. ``error``: why it is incomplete."""
        if self._silence_timer is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
        response, self._response = self._response, None
        self._buffered = 0
        if response is not None:
            response.end(error)
            response.wake()

    def _check_silence(self) -> None:
        """Break the response off if data was waited for too long, or look again later."""
        silence_s = self._loop.time() - self._heard_at
        is_waiting = self._response is not None and self._response.is_waiting
        if not is_waiting or self._transport.get_write_buffer_size():
            silence_s = 0.0
        if silence_s >= self._silence_s:
            return self.fail(TimeoutError("the server sends nothing"))
        delay = self._silence_s - silence_s
        self._silence_timer = self._loop.call_later(delay, self._check_silence)


def _has_length(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
