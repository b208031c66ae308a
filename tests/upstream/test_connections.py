"""HTTP/1.1 as servers speak it, over sockets: whole, in pieces, wrongly, slowly, not at all."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from antiphon.upstream import connections
from antiphon.upstream.connections import Answer, Connections

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HI = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Plain; charset=utf-8\r\ncontent-length: 2\r\n\r\nhi"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Heard:
    """What a server was asked: the requests of each connection."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: list[list[bytes]] = []

    @property
    def requests(self) -> list[bytes]:
        return [request for each in self.connections for request in each]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def playing(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0, ssl=tls)
    async with asyncio.timeout(20), server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def answering(*pieces: bytes, then: str = "serves on") -> AsyncIterator[Heard]:
    """Every request gets ``pieces``, each in a packet of its own."""
    heard = Heard()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        heard.connections.append(mine)
        while True:
            mine.append(await request_of(reader))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if then == "closes":
                return
            if then == "breaks":
                joined = writer.get_extra_info("socket")
                joined.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return writer.transport.abort()

    async with playing(talk) as heard.port:
        yield heard


def to(port: int, scheme: str = "http", **more: Any) -> Connections:
    times = {"connect_s": 5.0, "silence_s": 10.0, **more}
    return Connections(f"{scheme}://127.0.0.1:{port}/v1", {"X-One": "1"}, **times)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1/ask?a=b"


async def whole(answer: Answer) -> bytes:
    return b"".join([piece async for piece in pieces_of(answer)])


async def pieces_of(answer: Answer) -> AsyncIterator[bytes]:
    while piece := await answer.read():
        yield piece


async def asked(port: int, **more: Any) -> tuple[int, bytes]:
    there = to(port, **more)
    try:
        answer = await there.ask("POST", url(port), b"{}")
        return answer.status, await whole(answer)
    finally:
        await there.close()


async def test_what_is_asked() -> None:
    async with answering(HI) as heard:
        there = to(heard.port)
        answer = await there.ask("POST", url(heard.port), b"{}", {"x-two": "2", "X-ONE": "3"})
        assert (answer.status, answer.media_type, await whole(answer)) == (200, "text/plain", b"hi")
        assert answer.is_read
        await (await there.ask("GET", f"http://127.0.0.1:{heard.port}")).read()
        await there.close()
    first, second = heard.requests
    assert first == (
        b"POST /v1/ask?a=b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nx-one: 3\r\nx-two: 2\r\n"
        b"content-length: 2\r\n\r\n{}" % heard.port
    )
    assert second.startswith(b"GET / HTTP/1.1\r\n") and b"x-one: 1\r\n" in second


ANSWERS = {
    "a length": (HI,),
    "chunks": (CHUNKED + b"1\r\nh\r\n1;x=y\r\ni\r\n0\r\nx-late: 1\r\n\r\n",),
    "news before it": (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\n\r\n" + HI),
    "lone line ends": (b"HTTP/1.1 200 OK\ncontent-length: 2\n\nhi",),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 2\r\n\r\nhi",),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
async def test_answers_in_packets_of_any_size(answer: Sequence[bytes]) -> None:
    said = b"".join(answer)
    for packets in (answer, [said[at : at + 1] for at in range(len(said))]):
        async with answering(*packets) as heard:
            there = to(heard.port)
            for _ in range(2):
                assert await whole(await there.ask("POST", url(heard.port), b"{}")) == b"hi"
            await there.close()
        assert [len(each) for each in heard.connections] == [2]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
)
async def test_the_last_answer_of_a_connection(head: bytes) -> None:
    async with answering(head, b"hi", then="closes") as heard:
        there = to(heard.port)
        for _ in range(2):
            assert await whole(await there.ask("POST", url(heard.port), b"{}")) == b"hi"
        await there.close()
    assert [len(each) for each in heard.connections] == [1, 1]


WRONG = {
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n",),
    "a broken chunk": (CHUNKED, b"zz\r\n"),
    "another protocol": (b"HTTP/1.1 101 No\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
    "an endless head": (b"HTTP/1.1 200 OK\r\n", *[b"x: %b\r\n" % (b"y" * 2**14)] * 20),
    "too short": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",),
    "cut chunks": (CHUNKED + b"2\r\nhi\r\n",),
    "cut head": (b"HTTP/1.1 200 OK\r\ncontent-le",),
    "nothing": (),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_what_is_no_answer_is_an_error(answer: Sequence[bytes]) -> None:
    async with answering(*answer, then="closes") as heard:
        with pytest.raises(ConnectionError):
            await asked(heard.port)


async def test_an_answer_without_a_length_that_breaks_is_not_whole() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"hi", then="breaks") as heard:
        there = to(heard.port)
        answer = await there.ask("POST", url(heard.port), b"{}")
        with pytest.raises(ConnectionError):
            await whole(answer)
        await there.close()


async def test_more_than_was_asked_for_ends_the_connection() -> None:
    async with answering(HI + HI) as heard:
        there = to(heard.port)
        for _ in range(2):
            assert await whole(await there.ask("POST", url(heard.port), b"{}")) == b"hi"
        await there.close()
    assert [len(each) for each in heard.connections] == [1, 1]


async def test_what_nobody_asked_for_ends_the_connection() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HI)
        await writer.drain()
        writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await reader.read()
        gone.set()

    async with playing(talk) as port:
        there = to(port)
        assert await whole(await there.ask("POST", url(port), b"{}")) == b"hi"
        await gone.wait()
        await there.close()


async def test_a_connection_that_was_closed_is_not_used_again() -> None:
    async with answering(HI, then="closes") as heard:
        there = to(heard.port)
        for _ in range(2):
            assert await whole(await there.ask("POST", url(heard.port), b"{}")) == b"hi"
            while there._all:
                await asyncio.sleep(0)
        await there.close()
    assert [len(each) for each in heard.connections] == [1, 1]


async def test_who_answers_before_all_was_sent_is_left() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await asyncio.Event().wait()

    async with playing(talk) as port:
        there = to(port)
        answer = await there.ask("POST", url(port), b"x" * 2**24)
        assert answer.status == 413 and answer.is_read
        assert there._kept() is None
        await there.close()


async def test_to_leave_ends_the_connection() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED + b"2\r\nhi\r\n")
        await reader.read()
        gone.set()

    async with playing(talk) as port:
        there = to(port)
        answer = await there.ask("POST", url(port), b"{}")
        assert await answer.read() == b"hi"
        answer.close()
        with pytest.raises(ConnectionAbortedError):
            await answer.read()
        await gone.wait()
        gone.clear()
        waiting = asyncio.create_task(there.ask("POST", url(port), b"{}"))
        while not there._all:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await there.close()


async def test_after_the_end_nothing_is_asked() -> None:
    async with answering(CHUNKED) as heard:
        there = to(heard.port)
        answer = await there.ask("POST", url(heard.port), b"{}")
        await there.close()
        with pytest.raises(ConnectionAbortedError):
            await answer.read()
        with pytest.raises(ConnectionAbortedError):
            await there.ask("POST", url(heard.port), b"{}")
        assert not there._all


@pytest.mark.parametrize("said", [b"", CHUNKED + b"2\r\nhi\r\n"])
async def test_silence_ends_an_answer(said: bytes) -> None:
    async with answering(said) as heard:
        with pytest.raises(TimeoutError):
            await asked(heard.port, silence_s=0.05)


async def test_a_word_now_and_then_is_no_silence() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED)
        for _ in range(6):
            await asyncio.sleep(0.05)
            writer.write(b"1\r\nx\r\n")
        writer.write(b"0\r\n\r\n")
        await reader.read()

    async with playing(talk) as port:
        assert await asked(port, silence_s=0.2) == (200, b"x" * 6)


async def test_who_reads_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not read is bounded, and a server that is held back is not silent."""
    monkeypatch.setattr(connections, "_MOST_UNREAD", 2**14)
    body = b"x" * 2**23
    sent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        sent.set()
        await reader.read()

    async with playing(talk) as port:
        there = to(port, silence_s=0.02)
        answer = await there.ask("POST", url(port), b"{}")
        (connection,) = there._all
        while not connection._paused:
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert not sent.is_set() and answer._unread < 2**22
        assert await whole(answer) == body
        await there.close()


async def test_what_is_not_needed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_IDLE_S", 0.02)
    async with answering(HI) as heard:
        there = to(heard.port)
        await whole(await there.ask("POST", url(heard.port), b"{}"))
        assert len(there._free) == 1
        while there._all:
            await asyncio.sleep(0.005)
        assert there._free == []
        await there.close()


async def test_several_at_once_have_a_connection_each() -> None:
    async with answering(HI) as heard:
        there = to(heard.port)
        for _ in range(2):
            answers = [there.ask("POST", url(heard.port), b"{}") for _ in range(3)]
            assert [await whole(each) for each in await asyncio.gather(*answers)] == [b"hi"] * 3
        await there.close()
    assert [len(each) for each in heard.connections] == [2, 2, 2]


# --- addresses -----------------------------------------------------------------------------------


async def test_an_address_that_does_not_listen_leaves_it_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        refused = nobody.getsockname()

        async with answering(HI) as heard:

            async def found(host: str, port: int, **more: Any) -> list[Any]:
                assert host == "two.test"
                kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
                return [(*kind, refused), (*kind, ("127.0.0.1", heard.port))][: 3 - first]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
            first = 1
            there = Connections("http://two.test", {}, connect_s=5, silence_s=5)
            assert await whole(await there.ask("GET", "http://two.test/x")) == b"hi"
            await there.close()
            first = 2
            there = Connections("http://two.test", {}, connect_s=5, silence_s=5)
            with pytest.raises(ConnectionRefusedError):
                await there.ask("GET", "http://two.test/x")
            await there.close()
    assert b"host: two.test\r\n" in heard.requests[0]


async def test_addresses_that_hang_take_no_longer_than_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Any] = []

    async def found(host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", at)) for at in (1, 2)]

    async def hang(sock: socket.socket, address: Any) -> None:
        tried.append(address)
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", found)
    monkeypatch.setattr(loop, "sock_connect", hang)
    there = Connections("http://two.test", {}, connect_s=0.1, silence_s=5)
    with pytest.raises(TimeoutError):
        await there.ask("GET", "http://two.test/x")
    assert len(tried) == 2


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://h", "h"),
        ("https://h:443", "h:443"),
        ("http://[::1]:8", "[::1]:8"),
        ("https://me:pass%40@h/v1", "h"),
    ],
)
def test_hosts(address: str, host: str) -> None:
    there = Connections(address, {}, connect_s=1, silence_s=1)
    assert there._headers["host"] == host
    basic = "Basic bWU6cGFzc0A=" if "@" in address else None
    assert there._headers.get("authorization") == basic


@pytest.mark.parametrize("address", ["http://", "http:///v1", "http://h:99999", "http://h/a b"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError):
        Connections(address, {}, connect_s=1, silence_s=1)


async def test_a_header_is_one_line() -> None:
    with pytest.raises(ValueError, match="control"):
        Connections("http://h", {"authorization": "Bearer key\n"}, connect_s=1, silence_s=1)


# --- elsewhere than on asyncio's loop, over TLS ---------------------------------------------------


def test_on_the_loop_that_serves() -> None:
    async def main() -> None:
        async with answering(CHUNKED, b"2\r\nhi\r\n", b"0\r\n\r\n") as heard:
            there = to(heard.port)
            for _ in range(2):
                assert await whole(await there.ask("POST", url(heard.port), b"{}")) == b"hi"
            await there.close()
        assert [len(each) for each in heard.connections] == [2]
        async with answering(b"HTTP/1.1 200 OK\r\n\r\n", b"hi", then="closes") as heard:
            assert await asked(heard.port) == (200, b"hi")
        async with answering(CHUNKED) as heard:
            with pytest.raises(TimeoutError):
                await asked(heard.port, silence_s=0.05)

    uvloop.run(main())


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS, in which this process trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "here.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return context


async def test_over_tls(certified: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(HI)

    async with playing(talk, certified) as port:
        there = to(port, "https")
        at = f"https://127.0.0.1:{port}/v1/ask"
        for _ in range(2):
            assert await whole(await there.ask("POST", at, b"{}")) == b"hi"
        assert len(there._all) == 1
        await there.close()
        monkeypatch.delenv("SSL_CERT_FILE")
        strange = to(port, "https")
        with pytest.raises(ssl.SSLCertVerificationError):
            await strange.ask("POST", at, b"{}")
        await strange.close()
