"""The proxy of a box: what it lets through, what it refuses, and where secrets are."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from antiphon.sandbox.egress.proxy import Dialer
from antiphon.sandbox.egress.requests import InvalidProxyRequest, read_body, read_request
from tests.sandbox.egress.servers import SECRET, World, world

PLACEHOLDER = SECRET.placeholder


async def exchange(there: World, folder: Path, *sent: str, tls: str = "") -> str:
    """Send a request through the proxy and return the answer. ``tls``: the name of a tunnel."""
    path = str(folder / "proxy")
    server = await asyncio.start_unix_server(there.proxy.serve, path)
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        async with asyncio.timeout(60):
            if tls:
                writer.write(f"CONNECT {tls}:443 HTTP/1.1\r\nHost: {tls}:443\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                if b" 200 " not in head:
                    return (head + await reader.read()).decode()
                context = ssl.create_default_context(cadata=there.proxy.certificate.decode())
                await writer.start_tls(context, server_hostname=tls)
            writer.write("".join(sent).encode())
            answer = await reader.read()
            return answer.decode()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        server.close()


async def test_secret_is_inserted_outside_for_its_domain_only(tmp_path: Path) -> None:
    async with world() as there:
        line = f"GET /v1?key={PLACEHOLDER} HTTP/1.1\r\n"
        auth = f"Authorization: Bearer {PLACEHOLDER}\r\n\r\n"
        answer = await exchange(there, tmp_path, line, "Host: api.test\r\n", auth, tls="api.test")
        assert answer.endswith("hello from outside")
        assert b"GET /v1?key=real-secret HTTP/1.1" in there.received[0]
        assert b"Authorization: Bearer real-secret" in there.received[0]
        await exchange(there, tmp_path, line, "Host: files.test\r\n", auth, tls="files.test")
        assert b"real-secret" not in there.received[1] and PLACEHOLDER.encode() in there.received[1]
        plain = f"GET http://api.test/v1 HTTP/1.1\r\nHost: api.test\r\n{auth}"
        await exchange(there, tmp_path, plain)
        assert b"real-secret" not in there.received[2]  # it would travel in the clear
        assert dict(there.proxy.environment)["API_KEY"] == PLACEHOLDER


async def test_bodies_are_passed_on(tmp_path: Path) -> None:
    async with world() as there:
        head = "POST / HTTP/1.1\r\nHost: api.test\r\n"
        await exchange(there, tmp_path, head, "content-length: 5\r\n\r\nhello", tls="api.test")
        assert there.received[0].endswith(b"Content-Length: 5\r\nConnection: close\r\n\r\nhello")
        chunks = "transfer-encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n"
        await exchange(there, tmp_path, head, chunks, tls="api.test")
        assert there.received[1].endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "tls", "status"),
    [
        ("GET http://other.test/ HTTP/1.1\r\n\r\n", "", 403),
        ("GET http://api.test:8080/ HTTP/1.1\r\n\r\n", "", 403),
        ("GET http://127.0.0.1/ HTTP/1.1\r\n\r\n", "", 403),
        ("GET http://api.test@other.test/ HTTP/1.1\r\n\r\n", "", 400),
        ("CONNECT api.test:22 HTTP/1.1\r\n\r\n", "", 403),
        ("CONNECT other.test:443 HTTP/1.1\r\n\r\n", "", 403),
        ("GET / HTTP/1.1\r\n\r\n", "", 400),
        ("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", "api.test", 400),
        ("GET / HTTP/1.1\r\nHost: api.test\r\nHost: other.test\r\n\r\n", "api.test", 400),
        ("CONNECT api.test:443 HTTP/1.1\r\n\r\n", "api.test", 400),
        ("GET / HTTP/1.1\r\nbad header: x\r\n\r\n", "api.test", 400),
        ("GET / HTTP/1.1\r\nA: x\r\n folded\r\n\r\n", "api.test", 400),
    ],
)
async def test_what_is_not_allowed_is_refused_unsent(
    request_: str, tls: str, status: int, tmp_path: Path
) -> None:
    async with world() as there:
        answer = await exchange(there, tmp_path, request_, tls=tls)
        assert answer.startswith(f"HTTP/1.1 {status} "), answer
        assert there.received == [] and there.dialed == []


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: +1",
        "Content-Length: 1\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
    ],
)
async def test_ambiguous_bodies_are_refused(headers: str, tmp_path: Path) -> None:
    async with world() as there:
        request = f"POST http://api.test/ HTTP/1.1\r\n{headers}\r\n\r\nx"
        assert (await exchange(there, tmp_path, request)).startswith("HTTP/1.1 400 ")
        assert there.received == []


async def test_second_request_of_a_connection_is_not_sent(tmp_path: Path) -> None:
    async with world() as there:
        one = "GET / HTTP/1.1\r\nHost: api.test\r\n\r\n"
        other = "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n"
        await exchange(there, tmp_path, one, other, tls="api.test")
        assert len(there.received) == 1 and b"other.test" not in there.received[0]


async def test_names_that_lead_inside_are_refused(tmp_path: Path) -> None:
    """A name on the list may resolve to an address of the operator's network."""
    async with world(address="10.0.0.1") as there:
        request = "GET http://api.test/ HTTP/1.1\r\n\r\n"
        assert (await exchange(there, tmp_path, request)).startswith("HTTP/1.1 502 ")
    with pytest.raises(OSError, match="not allowed"):
        await Dialer().connect("localhost", 80, uses_tls=False)


def reader_of(text: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(text)
    reader.feed_eof()
    return reader


@pytest.mark.parametrize("body", [b"x\r\n", b"5\r\nabc", b"3\r\nabcde\r\n", b"-1\r\n"])
async def test_invalid_chunks_end_the_request(body: bytes) -> None:
    with pytest.raises((InvalidProxyRequest, EOFError)):
        async for _ in read_body(reader_of(body), None):
            pass


async def test_request_is_written_anew() -> None:
    head = b"GET http://API.test/a?b HTTP/1.0\r\nProxy-Authorization: x\r\nTE: y\r\nA:  b \r\n\r\n"
    request = await read_request(reader_of(head))
    assert (request.host, request.port) == ("api.test", 80)
    assert request.head() == (
        "GET /a?b HTTP/1.1\r\nHost: api.test\r\nA: b\r\nConnection: close\r\n\r\n"
    )


async def test_connection_that_the_box_does_not_close_ends_with_the_box() -> None:
    class Silent:
        """The other end never answers the end of TLS."""

        def __init__(self) -> None:
            self.transport = self
            self.is_aborted = False
            self.has_closed = asyncio.Event()

        def close(self) -> None:
            self.has_closed.set()

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

        def abort(self) -> None:
            self.is_aborted = True

    async with world() as there, asyncio.timeout(60):
        reader, writer = asyncio.StreamReader(), Silent()
        reader.feed_eof()
        handling = asyncio.create_task(there.proxy.serve(reader, writer))  # type: ignore[arg-type]
        await writer.has_closed.wait()
        await there.proxy.close()
        assert writer.is_aborted and handling.done() and not handling.cancelled()
        late = Silent()
        await there.proxy.serve(reader, late)  # type: ignore[arg-type]
        assert late.is_aborted, "it was accepted while the box was closed"
