"""One HTTP connection, with a transport in memory."""

from __future__ import annotations

import asyncio
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.http.server.connections import ConnectionLimits, OpenConnections
from antiphon.http.server.http_protocol import HttpProtocol


class MemoryTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.reads = True

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.written += data

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    content = scope["path"].encode() + b" " + body
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class Client:
    """A connection to an app."""

    def __init__(self, app: Callable[..., Any] = echo) -> None:
        connections = OpenConnections(app, ConnectionLimits(), 2**20)
        self.transport = MemoryTransport()
        self.protocol = HttpProtocol(connections)
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    async def send(self, *pieces: bytes) -> bytes:
        """Send pieces of requests, and return the answers without the header ``date``."""
        for piece in pieces:
            self.protocol.data_received(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        lines = self.transport.written.split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"date:"))

    def end(self) -> None:
        self.protocol.connection_lost(None)


ONE = b"POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
TWO = b"GET /t%77o?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = (
    b"POST /three HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
)
ANSWERS = b"".join(
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    for body in (b"/one abc", b"/two ", b"/three def")
)


@pytest.mark.parametrize("seed", range(40))
async def test_torn_and_pipelined_requests_are_answered_in_order(seed: int) -> None:
    chance, client = random.Random(seed), Client()
    data = ONE + TWO + CHUNKED
    cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(0, 12)))
    pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert await client.send(*pieces) == ANSWERS
    assert client.transport.reads and not client.transport.closing
    client.end()


async def test_many_small_chunks_cost_no_call_of_python_each() -> None:
    async def count_calls(chunks: int) -> int:
        """Return how many functions of Python are called while the chunks are read."""
        client, calls = Client(), 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        await client.send(b"POST /one HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        sys.setprofile(count)
        try:
            client.protocol.data_received(b"1\r\nx\r\n" * chunks)
        finally:
            sys.setprofile(None)
        assert (await client.send(b"0\r\n\r\n")).endswith(b"/one " + b"x" * chunks)
        client.end()
        return calls

    assert await count_calls(2) == await count_calls(20_000)


async def test_idle_connection_keeps_nothing_of_its_last_request() -> None:
    class Parsed:
        """What an app has made of a request."""

    kept = list[weakref.ref[Parsed]]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["app.parsed"] = parsed = Parsed()
        kept.append(weakref.ref(parsed))
        await echo(scope, receive, send)

    client = Client(app)
    assert (await client.send(ONE, TWO)).endswith(b"/two ")
    assert [each() for each in kept] == [None, None]
    client.end()


async def test_connection_close_is_answered_and_obeyed() -> None:
    client = Client()
    answer = await client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert b"connection: close\r\n" in answer and client.transport.closing
    client.end()


async def test_client_that_expects_100_is_told_to_continue() -> None:
    client = Client()
    head = b"POST /one HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    assert await client.send(head) == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.send(b"abc")).endswith(b"\r\n\r\n/one abc")
    client.end()


async def test_head_has_no_body() -> None:
    client = Client()
    answer = await client.send(b"HEAD /one HTTP/1.1\r\nHost: a\r\n\r\n" + TWO)
    first, second = answer.split(b"\r\n\r\n", 1)
    assert b"content-length: 5" in first and second.startswith(b"HTTP/1.1 200 OK")
    client.end()


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\0"])
async def test_header_with_a_line_end_is_not_sent(value: bytes) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ValueError):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x", value)]})

    client = Client(app)
    assert await client.send(TWO) == b"" and client.transport.closing
    client.end()


async def test_body_that_nobody_reads_is_not_received() -> None:
    read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read.wait()
        await echo(scope, receive, send)

    client = Client(app)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
    await client.send(head, b"x" * 100_000)
    assert not client.transport.reads
    read.set()
    assert (await client.send(b"x" * 100_000)).endswith(b"x" * 1000) and client.transport.reads
    client.end()


@pytest.mark.parametrize("waits", [True, False], ids=["app waits", "client stalls"])
async def test_body_that_waits_for_the_app_is_not_slow(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour passes in which nothing is received."""
    loop, passed = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    read = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read.wait()
        await echo(scope, receive, send)

    client = Client(app)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
    if not waits:
        read.set()
    await client.send(head, b"x" * 100_000)
    assert client.transport.reads is not waits
    passed = 3600.0
    await client.send()
    read.set()
    await client.send()
    passed += 6  # the rate is checked again
    assert (b" 408 " in await client.send()) is not waits
    if waits:
        assert b" 200 " in await client.send(b"x" * 100_000)
    client.end()


async def test_slow_client_is_waited_for() -> None:
    client = Client()
    client.protocol.pause_writing()
    assert await client.send(TWO) == b""
    client.protocol.resume_writing()
    assert b"/two " in await client.send()
    client.end()


async def test_lost_client_ends_the_request() -> None:
    messages = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        messages.extend([await receive(), await receive()])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    client = Client(app)
    await client.send(ONE)
    client.end()
    await client.send()
    assert [message["type"] for message in messages] == ["http.request", "http.disconnect"]
    assert client.transport.written == b""


UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize("upgrade", [b"", UPGRADE], ids=["http", "websocket"])
@pytest.mark.parametrize("url", [b"/", b"http://a/"])
@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nhost: b\r\n", b"Host: a\r\nHost: a\r\n"])
async def test_request_needs_one_host(hosts: bytes, url: bytes, upgrade: bytes) -> None:
    """Else a proxy in front might check another one."""
    client = Client()
    answer = await client.send(b"GET %b HTTP/1.1\r\n%b%b\r\n" % (url, hosts, upgrade))
    assert answer.startswith(b"HTTP/1.1 400 ") and b"invalid_http" in answer
    assert client.transport.closing
    client.end()


async def test_http_1_0_needs_no_host() -> None:
    client = Client()
    assert (await client.send(b"GET /one HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    client.end()
