"""Streamed responses, with and without the extension for direct writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.server.http_protocol import Output
from antiphon.http.streaming.response import DIRECT_WRITE_EXTENSION, EventStream
from antiphon.http.streaming.sse import DONE


class Connection:
    """Records what the app sends, by either way."""

    def __init__(self) -> None:
        self.straight: list[bytes] = []
        self.sent: list[Any] = []
        self.lags = False
        self.is_closed = False

    def write(self, piece: bytes) -> bool:
        if not self.lags:
            self.straight.append(piece)
        return not self.lags

    async def send(self, message: Any) -> None:
        if self.is_closed:
            raise OSError("gone")
        self.sent.append(message)

    def stream(self, method: str = "POST", *, has_extension: bool = True) -> EventStream:
        extensions = {DIRECT_WRITE_EXTENSION: {"write": self.write}} if has_extension else {}
        return EventStream({"method": method, "extensions": extensions}, self.send)


async def test_chunks_are_written_directly_and_headers_and_end_by_messages() -> None:
    connection = Connection()
    stream = connection.stream()
    await stream.start([(b"x-more", b"1")])
    assert stream.write(b"a") is None and stream.write(b"b") is None
    await stream.end(b"c")
    assert connection.straight == [b"a", b"b"]
    assert [message["type"] for message in connection.sent] == [
        "http.response.start",
        "http.response.body",
    ]
    assert (b"x-more", b"1") in connection.sent[0]["headers"]
    assert connection.sent[1] == {"type": "http.response.body", "body": b"c" + DONE}


@pytest.mark.parametrize(("method", "has_extension"), [("POST", False), ("HEAD", True)])
async def test_without_the_extension_chunks_are_messages(method: str, has_extension: bool) -> None:
    connection = Connection()
    rest = connection.stream(method, has_extension=has_extension).write(b"a")
    assert rest is not None
    await rest
    assert connection.sent == [{"type": "http.response.body", "body": b"a", "more_body": True}]
    assert connection.straight == []


async def test_slow_reader_is_awaited() -> None:
    connection = Connection()
    stream = connection.stream()
    connection.lags = True
    rest = stream.write(b"a")
    assert rest is not None and connection.sent == []
    await rest
    connection.lags = False
    assert stream.write(b"b") is None
    assert [message["body"] for message in connection.sent] == [b"a"] and connection.straight == [
        b"b"
    ]


async def test_failing_send_raises_client_disconnected() -> None:
    connection = Connection()
    connection.is_closed = True
    with pytest.raises(ClientDisconnected):
        await connection.stream().start()


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


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_direct_write_encodes_http_chunks_and_refuses_empty_ones() -> None:
    socket = FakeTransport()
    output = Output(socket)  # type: ignore[arg-type]
    write = output.write_chunk
    assert write(b"x" * 26)
    assert socket.written == b"1a\r\n" + b"x" * 26 + b"\r\n"
    assert not write(b"")  # an empty chunk would end the body
    output.is_paused = True
    assert not write(b"y")
    output.is_paused, socket.closing = False, True
    assert not write(b"y")
    assert socket.written.count(b"\r\n") == 2


async def test_headers_are_sent_with_the_first_chunk() -> None:
    socket = FakeTransport()
    transport = Output(socket)  # type: ignore[arg-type]
    write = transport.write_chunk
    transport.write_head(HEAD)
    assert write(b"a") and write(b"b")
    assert socket.packets == [HEAD + b"1\r\na\r\n", b"1\r\nb\r\n"]
    transport.write_head(HEAD)
    transport.write(b"{}")
    assert socket.packets[2:] == [HEAD + b"{}"]
    await asyncio.sleep(0)
    assert len(socket.packets) == 3


async def test_large_chunk_is_not_copied() -> None:
    socket, much = FakeTransport(), b"x" * 2**20
    transport = Output(socket)  # type: ignore[arg-type]
    transport.write_head(HEAD)
    transport.write(much)
    await asyncio.sleep(0)
    assert len(socket.packets) == 2 and socket.packets[0] == HEAD and socket.packets[1] is much


async def test_headers_alone_are_sent_in_the_next_loop_step() -> None:
    socket = FakeTransport()
    transport = Output(socket)  # type: ignore[arg-type]
    transport.write_head(HEAD)
    assert socket.packets == []
    await asyncio.sleep(0)
    assert socket.packets == [HEAD]
    transport.write_head(HEAD)
    transport.close()
    assert socket.packets == [HEAD, HEAD] and transport.is_closing()
