"""HTTP connections to an upstream; every failure is an ``OSError``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from antiphon.upstream.http import HttpClient, HttpResponse


@asynccontextmanager
async def upstream(
    *output: bytes, stays: bool = False
) -> AsyncIterator[tuple[str, HttpClient, list[bytes]]]:
    """A server that sends this response and closes, unless it stays; and its requests."""
    received: list[bytes] = []
    answering: list[asyncio.Task[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answering.append(task)
        received.append(await reader.readuntil(b"\r\n\r\n"))
        for piece in output:
            writer.write(piece)
            await writer.drain()
        if stays:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = HttpClient({"accept": "*/*", "x-key": "a"}, connect_s=5, silence_s=5)
    try:
        yield f"http://127.0.0.1:{port}/v1", connections, received
    finally:
        await connections.close()
        if answering:
            await asyncio.wait(answering, timeout=5)
        server.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"


async def test_request_and_response() -> None:
    async with upstream(HEAD + b"content-length: 4\r\n\r\n", b"word") as (
        url,
        connections,
        received,
    ):
        with closing(
            await connections.request("POST", f"{url}/x", b"{}", {"x-key": "b"})
        ) as answer:
            assert (answer.status, answer.media_type) == (200, "text/event-stream")
            assert [await answer.read(), await answer.read()] == [b"word", b""]
            assert answer.is_read
    (request,) = received
    assert request.startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert (
        b"x-key: b\r\n" in request and b"x-key: a" not in request and b"accept: */*\r\n" in request
    )


@pytest.mark.parametrize(
    "output",
    [(b"nonsense\r\n\r\n",), (b"",), (HEAD + b"content-length: 9\r\n\r\n", b"wo")],
    ids=["no HTTP", "nothing", "less than told"],
)
async def test_failures_are_os_errors(output: tuple[bytes, ...]) -> None:
    async with upstream(*output) as (url, connections, _):
        with pytest.raises(OSError):
            with closing(await connections.request("GET", url)) as answer:
                while await answer.read():
                    pass


async def test_closing_the_client_fails_pending_reads() -> None:
    output = (HEAD + b"content-length: 9\r\n\r\n", b"wo")
    async with upstream(*output, stays=True) as (url, connections, _):
        answer = await connections.request("GET", url)
        assert await answer.read() == b"wo"
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(0)
        await connections.close()
        with pytest.raises(OSError, match="closed"):
            async with asyncio.timeout(5):
                await reading
        with pytest.raises(OSError, match="closed"):
            await connections.request("GET", url)


async def test_connection_is_reused_after_a_whole_response() -> None:
    connections, ended = [], asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        for body in (b"content-length: 2\r\n\r\nab", b"transfer-encoding: chunked\r\n\r\n") * 2:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + body)
            if b"chunked" in body:
                writer.write(b"2\r\nab\r\n0\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = HttpClient({}, connect_s=5, silence_s=5)
    for _ in range(4):
        with closing(await client.request("GET", url)) as response:
            assert await response.read() == b"ab"
            assert await response.read() == b""
    assert len(connections) == 1
    await client.close()
    async with asyncio.timeout(5):
        await ended.wait()
    server.close()


async def test_body_without_a_length_ends_with_the_connection() -> None:
    async with upstream(HEAD + b"\r\n", b"wo", b"rd") as (url, connections, _):
        with closing(await connections.request("GET", url)) as answer:
            assert b"".join([piece async for piece in _pieces(answer)]) == b"word"


async def test_interim_response_is_skipped() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
    async with upstream(early + HEAD + b"content-length: 2\r\n\r\nab") as (url, connections, _):
        with closing(await connections.request("GET", url)) as answer:
            assert (answer.status, answer.headers.get("link")) == (200, None)
            assert await answer.read() == b"ab"


async def test_endless_headers_are_refused() -> None:
    async with upstream(HEAD, b"x: " + b"y" * 2**17, stays=True) as (url, connections, _):
        with pytest.raises(OSError, match="endless headers"):
            await connections.request("GET", url)


async def test_silence_ends_a_response() -> None:
    async with upstream(HEAD + b"content-length: 9\r\n\r\n", b"wo", stays=True) as (url, _, _):
        client = HttpClient({}, connect_s=5, silence_s=0.05)
        answer = await client.request("GET", url)
        assert await answer.read() == b"wo"
        with pytest.raises(TimeoutError):
            await answer.read()
        await client.close()


async def test_long_body_is_read_as_it_is_consumed() -> None:
    """The connection is not read while much waits, and is read again afterwards."""
    size = 2**22
    head = HEAD + f"content-length: {size}\r\n\r\n".encode()
    async with upstream(head, *[bytes(2**16)] * (size // 2**16)) as (url, connections, _):
        with closing(await connections.request("GET", url)) as answer:
            received = 0
            while piece := await answer.read():
                assert len(piece) < 2**20
                received += len(piece)
                await asyncio.sleep(0)
    assert received == size


async def test_address_may_have_a_login_and_a_query() -> None:
    async with upstream(HEAD + b"content-length: 0\r\n\r\n") as (url, connections, received):
        url = url.replace("//", "//user:pass%20word@") + "?a=b c"
        with closing(await connections.request("GET", url)) as answer:
            assert answer.status == 200
    assert received[0].startswith(b"GET /v1?a=b%20c HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Basic dXNlcjpwYXNzIHdvcmQ=\r\n" in received[0]


async def test_tls_checks_the_certificate() -> None:
    """A server that speaks plain HTTP, or has an unknown certificate, gets no request."""
    async with upstream(HEAD + b"content-length: 0\r\n\r\n") as (url, connections, received):
        with pytest.raises(OSError):
            await connections.request("GET", url.replace("http:", "https:"))
    assert not received


async def _pieces(answer: HttpResponse) -> AsyncIterator[bytes]:
    while piece := await answer.read():
        yield piece


async def test_redirects_are_not_followed() -> None:
    moved = b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with upstream(moved) as (url, connections, received):
        with closing(await connections.request("GET", url)) as answer:
            assert answer.status == 307
        assert len(received) == 1


def test_multiline_header_is_rejected() -> None:
    with pytest.raises(ValueError, match="control character"):
        HttpClient({"authorization": "Bearer a\r\nx: y"}, connect_s=1, silence_s=1)
