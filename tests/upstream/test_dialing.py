"""TLS, proxies from the environment, and several addresses of one host."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from antiphon.upstream import http
from antiphon.upstream.dialing import split_url
from antiphon.upstream.http import HttpClient

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nword"


def _certificate(folder: Path, *names: str) -> Path:
    """A certificate for these names and 127.0.0.1, with its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    alternatives: list[x509.GeneralName] = [x509.DNSName(each) for each in names]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


@asynccontextmanager
async def _server(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """A server that calls ``answer`` for each connection. Returns its port."""
    tasks: list[asyncio.Task[object]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await answer(reader, writer)  # type: ignore[misc]
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=60)


def _answerer(seen: list[bytes]) -> Callable[..., object]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(_ANSWER)

    return answer


def _tls(path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return context


async def _get(url: str, **more: str) -> bytes:
    client = HttpClient({"x-a": "b"}, connect_s=20, silence_s=20)
    try:
        with closing(await client.request("GET", url, **more)) as answer:
            return await answer.read()  # type: ignore[no-any-return]
    finally:
        await client.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_tls_with_the_certificates_of_the_system(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    path, seen = _certificate(tmp_path, "upstream.test"), list[bytes]()
    async with _server(_answerer(seen), _tls(path)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await _get(f"https://127.0.0.1:{port}/")
        environment.setenv("SSL_CERT_FILE", str(path))
        assert await _get(f"https://127.0.0.1:{port}/") == b"word"
        # A replica: an address, and the name that its certificate has.
        assert await _get(f"https://127.0.0.1:{port}/", host="upstream.test") == b"word"
        assert b"host: upstream.test\r\n" in seen[-1]
        with pytest.raises(ssl.SSLCertVerificationError):
            await _get(f"https://127.0.0.1:{port}/", host="another.test")


async def test_requests_go_through_the_proxy_of_the_environment(
    environment: pytest.MonkeyPatch,
) -> None:
    seen = list[bytes]()
    async with _server(_answerer(seen)) as port:
        environment.setenv("http_proxy", f"http://me:secret@127.0.0.1:{port}")
        environment.setenv("no_proxy", "direct.test")
        assert await _get("http://upstream.test/v1/models") == b"word"
        assert seen[0].startswith(b"GET http://upstream.test/v1/models HTTP/1.1\r\n")
        assert b"host: upstream.test\r\n" in seen[0]
        assert b"proxy-authorization: Basic bWU6c2VjcmV0\r\n" in seen[0]
        assert await _get(f"http://127.0.0.1:{port}/direct") == b"word"
        assert seen[1].startswith(b"GET /direct HTTP/1.1\r\n")
    assert split_url("http://direct.test/").proxy is None


async def test_tls_goes_through_a_tunnel(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    path, seen, asked = _certificate(tmp_path, "upstream.test"), list[bytes](), list[bytes]()
    environment.setenv("SSL_CERT_FILE", str(path))
    async with _server(_answerer(seen), _tls(path)) as port:

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

            async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(1000):
                    target.write(data)
                target.close()

            await asyncio.gather(copy(reader, outer), copy(inner, writer))

        async with _server(tunnel) as proxy:
            environment.setenv("https_proxy", f"http://127.0.0.1:{proxy}")
            assert await _get("https://upstream.test/v1") == b"word"
    assert asked[0].startswith(b"CONNECT upstream.test:443 HTTP/1.1\r\n")
    assert b"x-a" not in asked[0] and seen[0].startswith(b"GET /v1 HTTP/1.1\r\n")


async def test_refusing_proxy_is_an_os_error(environment: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")

    async with _server(refuse) as port:
        environment.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectionError, match="407"):
            await _get("https://upstream.test/v1")
        environment.setenv("https_proxy", f"socks5://127.0.0.1:{port}")
        with pytest.raises(ConnectionError, match="http://"):
            await _get("https://upstream.test/v1")


async def test_silent_server_is_given_up() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ANSWER[:-2])
        await reader.read()

    async with _server(wait) as port:
        client = HttpClient({}, connect_s=20, silence_s=0.05)
        with closing(await client.request("GET", f"http://127.0.0.1:{port}/")) as answer:
            assert await answer.read() == b"wo"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20):
                    await answer.read()
        await client.close()


async def test_tls_handshake_has_a_time_limit(environment: pytest.MonkeyPatch) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with _server(wait) as port:
        client = HttpClient({}, connect_s=0.05, silence_s=20)
        with pytest.raises(TimeoutError):
            await client.request("GET", f"https://127.0.0.1:{port}/")
        await client.close()


async def test_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_ANSWER)
        assert await reader.read() == b""
        gone.set()

    monkeypatch.setattr(http, "_IDLE_S", 0.01)
    async with _server(answer) as port:
        client = HttpClient({}, connect_s=20, silence_s=20)
        with closing(await client.request("GET", f"http://127.0.0.1:{port}/")) as response:
            assert await response.read() == b"word"
        async with asyncio.timeout(20):
            await gone.wait()
        await client.close()


async def test_cancelled_request_closes_its_connection() -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        gone.set()

    async with _server(answer) as port:
        client = HttpClient({}, connect_s=20, silence_s=20)
        request = asyncio.create_task(client.request("GET", f"http://127.0.0.1:{port}/"))
        async with asyncio.timeout(20):
            await asked.wait()
            request.cancel()
            await gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await request
        await client.close()


@pytest.mark.parametrize(
    ("url", "path", "authority"),
    [
        ("http://a.test", "/", "a.test"),
        ("http://a.test:80/v1?x=1&y=%20", "/v1?x=1&y=%20", "a.test"),
        ("https://a.test:8443/ä b", "/%C3%A4%20b", "a.test:8443"),
        ("http://[::1]:9/x#part", "/x", "[::1]:9"),
        ("http://bücher.test/", "/", "xn--bcher-kva.test"),
    ],
)
def test_url_parts(url: str, path: str, authority: str) -> None:
    target = split_url(url)
    assert (target.path, target.authority) == (path, authority)


def test_credentials_of_a_url() -> None:
    assert split_url("http://me:a%40b@a.test/").credentials == "me:a@b"


@pytest.mark.parametrize("url", ["ftp://a.test/", "http:///x", "a.test", "http://a.test:x/"])
async def test_bad_url_is_an_os_error(url: str) -> None:
    with pytest.raises(OSError):
        await _get(url)
