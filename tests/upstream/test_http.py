"""HTTP connections to an upstream; every failure is an ``OSError``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from antiphon.errors import SetupError
from antiphon.upstream.http import HttpClient


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
            await asyncio.wait(answering, timeout=60)
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
            async with asyncio.timeout(60):
                await reading
        with pytest.raises(OSError, match="closed"):
            await connections.request("GET", url)


async def test_closed_client_keeps_no_secret() -> None:
    async with upstream(HEAD + b"content-length: 0\r\n\r\n") as (url, _, received):
        secret = " ".join(("Bearer", "a"))
        count = sys.getrefcount(secret)
        client = HttpClient({}, connect_s=5, silence_s=5)
        (await client.request("GET", url, headers={"authorization": secret})).close()
        await client.close()
        assert b"authorization: Bearer a\r\n" in received[0]
        assert sys.getrefcount(secret) == count


async def test_redirects_are_not_followed() -> None:
    moved = b"HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with upstream(moved) as (url, connections, received):
        with closing(await connections.request("GET", url)) as answer:
            assert answer.status == 307
        assert len(received) == 1


def test_multiline_header_is_rejected() -> None:
    with pytest.raises(ValueError, match="control character"):
        HttpClient({"authorization": "Bearer a\r\nx: y"}, connect_s=1, silence_s=1)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohappyeyeballs", None)
    with pytest.raises(SetupError, match=r"pip install .*\[upstream\]"):
        HttpClient({}, connect_s=1, silence_s=1)


async def test_request_is_repeated_if_its_idle_connection_was_closed() -> None:
    """Each connection serves one request; the next one on it is dropped unanswered."""
    counts = {"connections": 0, "requests": 0}
    answering: list[asyncio.Task[object] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        counts["connections"] += 1
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            counts["requests"] += 1
            writer.write(HEAD + b"content-length: 4\r\n\r\nword")
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = HttpClient({}, connect_s=60, silence_s=60)
    for _ in range(3):
        with closing(await client.request("POST", url, b"{}")) as response:
            assert await response.read() == b"word" and await response.read() == b""
    await client.close()
    await asyncio.wait([task for task in answering if task is not None], timeout=60)
    server.close()
    assert counts == {"connections": 3, "requests": 3}


async def test_request_on_a_new_connection_is_sent_once() -> None:
    async with upstream(b"") as (url, connections, received):
        with pytest.raises(OSError):
            await connections.request("POST", url, b"{}")
    assert len(received) == 1
