"""Streamed answers: pieces that go straight to the connection, and those that cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.streaming.response import DIRECT_WRITE_EXTENSION, EventStream
from antiphon.http.streaming.sse import DONE
from antiphon.http.uvicorn_server import _BufferedTransport, _direct_writer


class Connection:
    """What a server is told, by whichever way."""

    def __init__(self) -> None:
        self.straight: list[bytes] = []
        self.sent: list[Any] = []
        self.lags = False
        self.gone = False

    def write(self, piece: bytes) -> bool:
        if not self.lags:
            self.straight.append(piece)
        return not self.lags

    async def send(self, message: Any) -> None:
        if self.gone:
            raise OSError("gone")
        self.sent.append(message)

    def stream(self, method: str = "POST", *, offered: bool = True) -> EventStream:
        extensions = {DIRECT_WRITE_EXTENSION: {"write": self.write}} if offered else {}
        return EventStream({"method": method, "extensions": extensions}, self.send)


async def test_pieces_go_straight_and_head_and_end_by_messages() -> None:
    here = Connection()
    stream = here.stream()
    await stream.start([(b"x-more", b"1")])
    assert stream.write(b"a") is None and stream.write(b"b") is None
    await stream.end(b"c")
    assert here.straight == [b"a", b"b"]
    assert [message["type"] for message in here.sent] == [
        "http.response.start",
        "http.response.body",
    ]
    assert (b"x-more", b"1") in here.sent[0]["headers"]
    assert here.sent[1] == {"type": "http.response.body", "body": b"c" + DONE}


@pytest.mark.parametrize(("method", "offered"), [("POST", False), ("HEAD", True)])
async def test_elsewhere_they_are_messages(method: str, offered: bool) -> None:
    here = Connection()
    rest = here.stream(method, offered=offered).write(b"a")
    assert rest is not None
    await rest
    assert here.sent == [{"type": "http.response.body", "body": b"a", "more_body": True}]
    assert here.straight == []


async def test_who_lags_behind_is_waited_for() -> None:
    here = Connection()
    stream = here.stream()
    here.lags = True
    rest = stream.write(b"a")
    assert rest is not None and here.sent == []
    await rest
    here.lags = False
    assert stream.write(b"b") is None
    assert [message["body"] for message in here.sent] == [b"a"] and here.straight == [b"b"]


async def test_a_server_that_says_nobody_is_there_is_believed() -> None:
    here = Connection()
    here.gone = True
    with pytest.raises(ClientDisconnected):
        await here.stream().start()


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []
        self.closing = False

    @property
    def written(self) -> bytes:
        return b"".join(self.packets)

    def write(self, data: Any) -> None:
        self.packets.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


class Flow:
    write_paused = False


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_a_piece_is_a_chunk_and_nothing_ends_the_body() -> None:
    socket, flow = FakeTransport(), Flow()
    write = _direct_writer(_BufferedTransport(socket), flow)  # type: ignore[arg-type]
    assert write(b"x" * 26)
    assert socket.written == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert not write(b"")  # as a chunk it would be the last
    flow.write_paused = True
    assert not write(b"y")
    flow.write_paused, socket.closing = False, True
    assert not write(b"y")
    assert socket.written.count(b"\r\n") == 2


async def test_a_head_goes_with_what_follows_it() -> None:
    socket = FakeTransport()
    joined = _BufferedTransport(socket)
    write = _direct_writer(joined, Flow())  # type: ignore[arg-type]
    joined.write(HEAD)
    assert write(b"a") and write(b"b")
    assert socket.packets == [HEAD + b"1\r\na\r\n", b"1\r\nb\r\n"]
    joined.write(HEAD)
    joined.write(b"{}")
    assert socket.packets[2:] == [HEAD + b"{}"]
    await asyncio.sleep(0)
    assert len(socket.packets) == 3


async def test_what_is_much_is_not_copied() -> None:
    socket, much = FakeTransport(), b"x" * 2**20
    joined = _BufferedTransport(socket)
    joined.write(HEAD)
    joined.write(much)
    await asyncio.sleep(0)
    assert len(socket.packets) == 2 and socket.packets[0] == HEAD and socket.packets[1] is much


async def test_a_head_that_nothing_follows_goes_alone() -> None:
    socket = FakeTransport()
    joined = _BufferedTransport(socket)
    joined.write(HEAD)
    assert socket.packets == []
    await asyncio.sleep(0)
    assert socket.packets == [HEAD]
    joined.write(HEAD)
    joined.close()
    assert socket.packets == [HEAD, HEAD] and joined.is_closing()
