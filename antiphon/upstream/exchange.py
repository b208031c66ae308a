"""HTTP/1.1 on one connection to a server: requests go out, and llhttp parses the responses.

An ``Exchange`` has all state of one request and its response, and a parser of its own. Therefore,
nothing that a server sends can reach the next request of the connection. After an exchange, the
connection can be used again only if the response is complete, the caller has it, and the server has
sent nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import httptools

from antiphon.support.push import Sink

#: The connection stops reading while this number of bytes of the body is not yet read.
_MAX_BUFFERED_BYTES = 2**18
#: Limit for bytes that are not part of the body: the headers, and the frames between two chunks.
_MAX_HEAD_BYTES = 2**16
#: A larger body is not copied to join it with the head of the request.
_MAX_JOINED_BYTES = 2**14
_SWITCHING_PROTOCOLS = 101


class Exchange:
    """A request that was sent, and its response, which is read while it arrives.

    ``status``, ``headers``: set when ``wait_for_head`` returns. The names of headers are in lower
    case. ``silence_s``: maximum time in seconds to wait for data. ``clock`` returns the time of the
    event loop.
    """

    __slots__ = (
        "_buffered_bytes",
        "_clock",
        "_connection",
        "_error",
        "_has_head",
        "_has_surplus",
        "_head_bytes",
        "_is_interim",
        "_last_data",
        "_parser",
        "_pieces",
        "_silence_s",
        "_sink",
        "_timer",
        "_until_end",
        "_waiter",
        "can_reuse",
        "has_data",
        "headers",
        "is_complete",
        "status",
    )

    def __init__(
        self, connection: Connection, silence_s: float, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._silence_s, self._clock = silence_s, clock
        #: None after the last data. It refers to the exchange.
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._buffered_bytes = self._head_bytes = 0
        self._has_head = self._is_interim = self._has_surplus = self._until_end = False
        self._error: Exception | None = None
        #: Gets the result None when the caller of ``read`` or ``pump`` can go on, or the awaitable
        #: with which the sink of ``pump`` asks for a pause.
        self._waiter: asyncio.Future[Awaitable[None] | None] | None = None
        #: The sink of ``pump``.
        self._sink: Sink[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_data = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        #: Whether any byte of the response has arrived.
        self.has_data = False
        #: Whether the whole response has arrived. A part of its body may not be read yet.
        self.is_complete = False
        #: Whether another request can be sent after this response.
        self.can_reuse = False

    # --- the caller's side -----------------------------------------------------------------------

    async def wait_for_head(self) -> None:
        """Wait for the status and the headers. Raises ``OSError``."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes:
        """Wait until at least one byte of the body has arrived, and return all bytes that have
        arrived. Returns b"" at the end of the body.

        Raises ``OSError`` if the connection breaks, and ``TimeoutError`` if no data arrives for too
        long.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                return b""
            await self._wait()
        return self._take_pieces()

    async def pump(self, sink: Sink[bytes]) -> None:
        """Give the body to ``sink`` while it arrives, until its end. See ``support.push``. Raises
        ``OSError`` in the same cases as ``read``; the error is then also in ``error``."""
        self._sink = partial(copy_context().run, sink)  # type: ignore[call-arg]
        try:
            while True:
                if self._pieces:
                    rest = sink(self._take_pieces())
                elif self._error is not None:
                    raise self._error
                elif self.is_complete:
                    return
                else:
                    rest = await self._wait()
                if rest is not None:
                    await rest
        finally:
            self._sink = None

    @property
    def error(self) -> Exception | None:
        """The error with which the response broke off."""
        return self._error

    @property
    def is_read(self) -> bool:
        """Whether the whole body has been read."""
        return self.is_complete and not self._pieces

    def _take_pieces(self) -> bytes:
        """Return the bytes of the body that have arrived since the last call."""
        pieces, self._pieces, self._buffered_bytes = self._pieces, [], 0
        if not self.is_complete:
            self._connection.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _wait(self) -> Awaitable[None] | None:
        """Wait for data, for the end of the response, for an error, or until the sink of ``pump``
        asks for a pause. Returns the awaitable of this pause, or None. Raises the exception of the
        sink."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Awaitable[None] | None] = loop.create_future()
        self._waiter, self._last_data = waiter, self._clock()
        if self._timer is None:
            self._timer = loop.call_later(self._silence_s, self._check_silence)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
                raise
            if (rest := waiter.result()) is None:
                raise
            _postpone_cancellation()  # the pause may write something that must not be lost
            return rest
        finally:
            self._waiter = None
            del waiter  # its error refers to this frame: the two would keep each other in memory

    def _check_silence(self) -> None:
        """Fail if the caller has waited too long for data. One timer is used for all waits."""
        self._timer = None
        if self._waiter is None:
            return  # the next wait starts the timer again
        left_s = self._last_data + self._silence_s - self._clock()
        if left_s > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left_s, self._check_silence)
        else:
            self._connection.fail(TimeoutError("the server sent nothing for too long"))

    # --- the connection's side -------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raises ``ConnectionError`` if they are not HTTP."""
        self.has_data = True
        self._last_data = self._clock()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            if not self.is_complete:
                raise ConnectionError(f"the response is not HTTP: {error}") from None
            self._has_surplus = True
        if self._head_bytes > _MAX_HEAD_BYTES and not self.is_complete:
            raise ConnectionError("the headers of the response are too long")
        if self._has_surplus:
            self.can_reuse = False
        if self._buffered_bytes > _MAX_BUFFERED_BYTES and not self.is_complete:
            self._connection.pause()
        if self._has_head:
            self._wake()

    def free_parser(self) -> None:
        """Break the cycle between the exchange and its parser, which gets no more data."""
        self._parser = None

    def end(self, error: Exception | None) -> None:
        """Note that no data will follow: the connection is closed. ``error``: why it was closed by
        this side or by the network; None if the server has closed it."""
        if self.is_complete:
            return
        if error is None and self._until_end:
            self.is_complete = True
        else:
            self._error = error or ConnectionError("the server has closed the connection")
        self._stop_timer()
        self._wake()

    def _wake(self) -> None:
        """Give what has arrived to the sink, if there is one. Otherwise, and at the end, wake the
        caller."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        rest: Awaitable[None] | None = None
        if self._sink is not None and self._pieces:
            try:
                rest = self._sink(self._take_pieces())
            except Exception as error:
                waiter.set_exception(error)
                del waiter  # as in ``_wait``
                return
            if rest is None and not self.is_complete:
                return
        waiter.set_result(rest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- callbacks of the parser -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_surplus |= self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer, or a header of surplus data
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        status = self._parser.get_status_code()
        self._is_interim = status < 200
        if status == _SWITCHING_PROTOCOLS:
            raise ValueError("status 101")
        if self._is_interim:  # such as 100 and 103; the response follows
            self.headers = {}
            return
        self.status, self._has_head = status, True
        coding = self.headers.get("transfer-encoding", "").lower()
        has_length = "content-length" in self.headers or coding.endswith("chunked")
        self._until_end = not has_length

    def on_body(self, data: bytes) -> None:
        self._head_bytes = 0
        if not self.is_complete:
            self._pieces.append(data)
            self._buffered_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        elif not self.is_complete:
            self.is_complete = True
            self.can_reuse = self._parser.should_keep_alive()
            self._stop_timer()


class Connection(asyncio.Protocol):
    """A connection to a server. It has at most one exchange at a time.

    ``clock`` returns the time of the event loop. ``on_free`` is called when another request can be
    sent. ``on_lost`` is called when the connection is closed.
    """

    __slots__ = (
        "_clock",
        "_exchange",
        "_failure",
        "_is_handed_out",
        "_is_paused",
        "_transport",
        "on_free",
        "on_lost",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        on_free: Callable[[Connection], None] = lambda connection: None,
        on_lost: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        self._clock = clock
        self.on_free, self.on_lost = on_free, on_lost
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._failure: Exception | None = None
        self._is_paused = self._is_handed_out = False

    def send(self, head: bytes, body: bytes, silence_s: float) -> Exchange:
        """Send a request. The connection must be free."""
        assert self._exchange is None and self._transport is not None
        self._is_handed_out = False
        self._exchange = exchange = Exchange(self, silence_s, self._clock)
        if len(body) <= _MAX_JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return exchange

    def hand_out(self, exchange: Exchange) -> None:
        """Note that the caller has the response. From now on, the end of the response frees the
        connection."""
        if self._exchange is exchange:
            self._is_handed_out = True
            if exchange.is_complete:
                self._release(exchange)

    def release(self, exchange: Exchange) -> None:
        """Note that the caller does not need the rest of the response. If it has not arrived, the
        connection is closed. Does nothing if the connection serves another exchange already."""
        if self._exchange is exchange:
            self.fail(ConnectionError("the response was closed"))

    def fail(self, error: Exception) -> None:
        """Close the connection at once. The exchange fails with ``error``."""
        self._failure = self._failure or error
        if self._transport is not None:
            self._transport.abort()
        if (exchange := self._take_exchange()) is not None:
            exchange.end(self._failure)

    def pause(self) -> None:
        """Stop reading: the caller is slower than the server."""
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after ``pause``."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def replace_transport(self, transport: asyncio.Transport) -> None:
        """Continue on another transport, such as TLS over the present one."""
        self._transport = transport
        self._take_exchange()

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport; None before the connection is established."""
        return self._transport

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing()

    def _take_exchange(self) -> Exchange | None:
        """Return the exchange, if there is one, and give it no more data."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.free_parser()
        return exchange

    def _release(self, exchange: Exchange) -> None:
        """End an exchange whose response is complete and handed out."""
        self._take_exchange()
        self.resume()
        transport = self._transport
        if exchange.can_reuse and transport is not None and not transport.get_write_buffer_size():
            self.on_free(self)
        else:
            self.fail(ConnectionError("the connection cannot be used again"))

    # --- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop has its own classes

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nothing was requested
            self.fail(ConnectionError("the server sent unexpected data"))
            return
        try:
            exchange.feed(data)
        except ConnectionError as error:
            self.fail(error)
            return
        if exchange.is_complete and self._is_handed_out:
            self._release(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        failure = self._failure
        if failure is None and exc is not None:
            failure = exc if isinstance(exc, OSError) else ConnectionError(str(exc))
        if (exchange := self._take_exchange()) is not None:
            exchange.end(failure)
        self.on_lost(self)


def _postpone_cancellation() -> None:
    """Cancel the current task at its next wait, in place of the ``CancelledError`` that it has just
    caught."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    task.cancel()
