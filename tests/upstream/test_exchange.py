"""Responses of all kinds, split, torn, pipelined and mutated: the caller gets the response or an
``OSError``, and a connection is used again only after a complete response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.upstream.exchange import Connection, Exchange

BODY = b'data: {"text":"word"}\n\ndata: [DONE]\n\n'
_CHUNKED = b"10\r\n" + BODY[:16] + b"\r\n" + b"%x\r\n" % len(BODY[16:]) + BODY[16:] + b"\r\n0\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
#: Responses with the same body, each with whether its connection can be used again.
RESPONSES = {
    "length": (_HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, True),
    "chunked": (_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKED + b"\r\n", True),
    "trailer": (
        _HEAD + b"Transfer-Encoding: Chunked\r\n\r\n" + _CHUNKED + b"x-a: b\r\n\r\n",
        True,
    ),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        + _HEAD
        + b"Content-Length: %d\r\n\r\n" % len(BODY)
        + BODY,
        True,
    ),
    "close": (
        _HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        False,
    ),
    "1.0": (
        b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        False,
    ),
    "1.0, kept": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(BODY)
        + BODY,
        True,
    ),
}
UNTIL_END = _HEAD + b"Connection: close\r\n\r\n" + BODY


class _Transport(asyncio.Transport):
    """Records what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_aborted, self.is_paused = b"", False, False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class _Link:
    """A connection over a fake transport, with a request that was sent. ``free``: how often the
    connection became free."""

    def __init__(self) -> None:
        self.free = 0
        self.connection = Connection(lambda: 0.0, self._count)
        self.transport = _Transport()
        self.connection.connection_made(self.transport)
        self.exchange = self.send()

    def _count(self, connection: Connection) -> None:
        assert connection is self.connection
        self.free += 1

    def send(self) -> Exchange:
        return self.connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", 60)

    def receive(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.transport.is_aborted:
                self.connection.data_received(piece)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """The rest of the response. Raises ``OSError``. There must be nothing left to wait for."""
        async with asyncio.timeout(60):
            await self.exchange.wait_for_head()
            self.connection.hand_out(self.exchange)
            body = b""
            while piece := await self.exchange.read():
                body += piece
        return self.exchange.status, self.exchange.headers, body

    async def start_pump(
        self, sink: Callable[[bytes], Awaitable[None] | None]
    ) -> asyncio.Task[None]:
        """Start to give the body to ``sink``, and wait until the pump waits for data."""

        async def pump() -> None:
            await self.exchange.wait_for_head()
            self.connection.hand_out(self.exchange)
            try:
                await self.exchange.pump(sink)
            finally:
                self.connection.release(self.exchange)

        task = asyncio.create_task(pump())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task


def _run(link: _Link) -> tuple[int, dict[str, str], bytes]:
    return asyncio.run(link.response())


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(each % (len(data) + 1) for each in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places) if a < b]


_CUTS = st.lists(st.integers(0, 1000), max_size=12)


@pytest.mark.parametrize("kind", RESPONSES)
@given(cuts=_CUTS)
def test_split_response(kind: str, cuts: list[int]) -> None:
    response, is_reused = RESPONSES[kind]
    link = _Link()
    link.receive(*_pieces(response, cuts))
    status, headers, body = _run(link)
    assert (status, body) == (200, BODY)
    assert "link" not in headers and "x-a" not in headers
    assert (link.free, link.transport.is_aborted) == ((1, False) if is_reused else (0, True))


@pytest.mark.parametrize("kind", RESPONSES)
@given(end=st.integers(0, 1000), cuts=_CUTS)
def test_torn_response_fails(kind: str, end: int, cuts: list[int]) -> None:
    response, _ = RESPONSES[kind]
    link = _Link()
    link.receive(*_pieces(response[: end % len(response)], cuts))
    link.connection.connection_lost(None)
    with pytest.raises(ConnectionError, match="closed"):
        _run(link)
    assert link.free == 0


@given(cuts=_CUTS)
def test_body_until_the_end_of_the_connection(cuts: list[int]) -> None:
    link = _Link()
    link.receive(*_pieces(UNTIL_END, cuts))
    assert not link.exchange.is_complete
    link.connection.connection_lost(None)
    assert _run(link)[2] == BODY
    assert link.free == 0


@pytest.mark.parametrize("kind", RESPONSES)
@given(surplus=st.binary(min_size=1, max_size=40), cuts=_CUTS, is_late=st.booleans())
def test_surplus_never_reaches_the_next_request(
    kind: str, surplus: bytes, cuts: list[int], is_late: bool
) -> None:
    response, _ = RESPONSES[kind]
    link = _Link()
    if is_late:
        link.receive(*_pieces(response, cuts))
        assert _run(link)[2] == BODY
        link.receive(surplus)
        assert link.transport.is_aborted
        return
    link.receive(*_pieces(response + RESPONSES["length"][0], cuts))
    assert _run(link)[2] == BODY
    assert (link.free, link.transport.is_aborted) == (0, True)


@given(
    kind=st.sampled_from([*RESPONSES]),
    changes=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=4),
    inserted=st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=8)), max_size=2),
    cuts=_CUTS,
)
def test_mutated_response_ends(
    kind: str, changes: list[tuple[int, int]], inserted: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    response = bytearray(RESPONSES[kind][0])
    for place, value in changes:
        response[place % len(response)] = value
    for place, data in inserted:
        at = place % len(response)
        response[at:at] = data
    link = _Link()
    link.receive(*_pieces(bytes(response), cuts))
    link.connection.connection_lost(None)
    try:
        _run(link)
    except OSError:
        assert link.free == 0


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        _HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        _HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
        _HEAD + b"Content-Length: -1\r\n\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\nnot a number\r\n",
        _HEAD + b"a: " + b"x" * 70_000,
        _HEAD + b"a: b\r\n" * 20_000,
        b"\x16\x03\x01 TLS where HTTP is expected",
    ],
    ids=lambda response: repr(response[-30:]),
)
def test_lying_response_fails(response: bytes) -> None:
    link = _Link()
    link.receive(*_pieces(response, [*range(0, 1000, 7)]))
    assert link.transport.is_aborted
    with pytest.raises(ConnectionError):
        _run(link)


def test_response_in_one_packet_frees_its_connection_only_when_it_is_handed_out() -> None:
    link = _Link()
    link.receive(RESPONSES["length"][0])
    assert link.free == 0, "the caller has not read its status yet"
    assert _run(link)[2] == BODY
    assert link.free == 1


def test_exchanges_of_one_connection_are_separate() -> None:
    link = _Link()
    link.receive(RESPONSES["length"][0])
    assert _run(link)[2] == BODY
    first, link.exchange = link.exchange, link.send()
    link.connection.release(first)  # a late ``close`` of the first response
    assert not link.transport.is_aborted
    link.receive(RESPONSES["chunked"][0])
    assert _run(link)[2] == BODY
    assert link.free == 2


def test_slow_reader_pauses_the_connection() -> None:
    link = _Link()
    link.receive(_HEAD + b"Content-Length: 1000000\r\n\r\n", b"x" * 200_000)
    assert not link.transport.is_paused
    link.receive(b"x" * 100_000)
    assert link.transport.is_paused

    async def read() -> int:
        await link.exchange.wait_for_head()
        link.connection.hand_out(link.exchange)
        return len(await link.exchange.read())

    assert asyncio.run(read()) == 300_000
    assert not link.transport.is_paused


def test_unread_request_prevents_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers before it has read the request may never read it."""
    link = _Link()
    monkeypatch.setattr(link.transport, "get_write_buffer_size", lambda: 10)
    link.receive(RESPONSES["length"][0])
    assert _run(link)[2] == BODY
    assert (link.free, link.transport.is_aborted) == (0, True)


def test_closed_response_closes_its_connection() -> None:
    link = _Link()
    link.receive(RESPONSES["length"][0][:-3])
    with pytest.raises(ConnectionError, match="the response was closed"):

        async def read() -> None:
            await link.exchange.wait_for_head()
            link.connection.hand_out(link.exchange)
            link.connection.release(link.exchange)
            while await link.exchange.read():
                pass

        asyncio.run(read())
    assert link.transport.is_aborted


# --- pushed bodies --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*RESPONSES, "until end"])
@given(cuts=_CUTS, early=st.integers(0, 12), pauses=st.sets(st.integers(0, 12)))
def test_pump_gives_the_body_in_order(
    kind: str, cuts: list[int], early: int, pauses: set[int]
) -> None:
    """However it is split, whatever has arrived before, and wherever the sink pauses."""
    response, _ = RESPONSES.get(kind, (UNTIL_END, False))
    link, received, open_pauses = _Link(), list[bytes](), 0

    async def pause() -> None:
        nonlocal open_pauses
        open_pauses += 1
        await asyncio.sleep(0)
        open_pauses -= 1

    def take(data: bytes) -> Awaitable[None] | None:
        assert data and not open_pauses, "the sink was called in a pause"
        received.append(data)
        return pause() if len(received) in pauses else None

    async def run() -> None:
        pieces = _pieces(response, cuts)
        link.receive(*pieces[:early])
        task = await link.start_pump(take)
        for piece in pieces[early:]:
            link.receive(piece)
            if len(piece) % 2:
                await asyncio.sleep(0)
        link.connection.connection_lost(None)
        async with asyncio.timeout(60):
            await task

    asyncio.run(run())
    assert b"".join(received) == BODY


async def _headed(
    sink: Callable[[bytes], Awaitable[None] | None],
) -> tuple[_Link, asyncio.Task[None]]:
    link = _Link()
    link.receive(_HEAD + b"Content-Length: 1000000\r\n\r\n")
    return link, await link.start_pump(sink)


async def test_data_reaches_the_sink_without_a_task() -> None:
    received: list[bytes] = []
    link, task = await _headed(received.append)
    link.receive(b"abc")
    assert received == [b"abc"]
    link.receive(b"d", b"e")
    assert received == [b"abc", b"d", b"e"] and not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert link.transport.is_aborted


async def test_sink_runs_in_the_context_of_its_task() -> None:
    name, seen = ContextVar("name", default="connection"), list[str]()
    token = name.set("run")
    link, task = await _headed(lambda data: seen.append(name.get()))
    name.reset(token)
    link.receive(b"abc")
    assert (name.get(), seen) == ("connection", ["run"])
    task.cancel()
    await asyncio.wait([task])


async def test_pausing_sink_pauses_the_connection() -> None:
    received, gate = list[bytes](), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    def take(data: bytes) -> Awaitable[None]:
        received.append(data)
        return wait()

    link, task = await _headed(take)
    link.receive(b"a", b"b" * 200_000)
    assert received == [b"a"] and not link.transport.is_paused
    link.receive(b"b" * 100_000)
    assert link.transport.is_paused
    gate.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert received[1:] == [b"b" * 300_000] and not link.transport.is_paused
    task.cancel()
    await asyncio.wait([task])


async def test_error_of_the_sink_ends_the_pump() -> None:
    calls = 0

    def take(data: bytes) -> None:
        nonlocal calls
        calls += 1
        raise KeyError("x")

    link, task = await _headed(take)
    link.receive(b"a", b"b")
    with pytest.raises(KeyError):
        await task
    assert calls == 1 and link.transport.is_aborted


async def test_cancelled_pump_calls_the_sink_no_more() -> None:
    received: list[bytes] = []
    link, task = await _headed(received.append)
    link.receive(b"a")
    task.cancel()
    link.receive(b"b")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert received == [b"a"] and link.transport.is_aborted


@pytest.mark.parametrize("never", [True, False])
async def test_cancellation_at_the_begin_of_a_pause_loses_nothing(never: bool) -> None:
    """The events of a pause that has just been asked for are written, and cancellation counts
    once."""
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)
        if never:
            await asyncio.Event().wait()

    link, task = await _headed(write)
    link.receive(b"a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(60):
            await task
    assert written == [b"a"] and task.cancelling() == 1 and link.transport.is_aborted


async def test_error_of_the_sink_in_a_cancelled_pump_is_not_reported() -> None:
    def take(data: bytes) -> None:
        raise KeyError("x")

    link, task = await _headed(take)
    link.receive(b"a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
