"""Responses of all kinds, split, torn, pipelined and mutated: the caller gets the response or an
``OSError``, and a connection is used again only after a complete response."""

from __future__ import annotations

import asyncio
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
        async with asyncio.timeout(0.1):
            await self.exchange.wait_for_head()
            self.connection.hand_out(self.exchange)
            body = b""
            while piece := await self.exchange.read():
                body += piece
        return self.exchange.status, self.exchange.headers, body


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
