"""A TLS server that records its requests, and a proxy that connects to it by name."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct

from antiphon.sandbox.egress.authority import BoxAuthority
from antiphon.sandbox.egress.policy import BoxSecret, EgressPolicy
from antiphon.sandbox.egress.proxy import Dialer, EgressProxy
from antiphon.security.ssrf import parse_network

LOOPBACK = parse_network("127.0.0.0/8", "test")
SECRET = BoxSecret(
    domain="api.test", name="API_KEY", value="real-secret", placeholder="secret_placeholder"
)


def _now() -> float:
    import time

    return time.time()


class World(Struct, kw_only=True):
    """``received``: the requests to the servers as they came. ``dialed``: names and ports."""

    policy: EgressPolicy
    proxy: EgressProxy
    dialer: Dialer
    received: list[bytes]
    dialed: list[tuple[str, int]]


@asynccontextmanager
async def world(
    *domains: str, secrets: tuple[BoxSecret, ...] = (SECRET,), address: str = "127.0.0.1"
) -> AsyncIterator[World]:
    """Serve every name on loopback: at port 80 plain, at port 443 with TLS. ``address``: what the
    names resolve to."""
    outside = BoxAuthority(_now)
    received: list[bytes] = []
    dialed: list[tuple[str, int]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in request:
            request += await reader.readuntil(b"0\r\n\r\n")
        elif b"Content-Length: " in request:
            length = int(request.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            request += await reader.readexactly(length)
        received.append(request)
        body = b"hello from outside"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    plain = await asyncio.start_server(serve, "127.0.0.1", 0)
    names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names.sni_callback = lambda wrapped, name, _: setattr(
        wrapped, "context", outside.context(name or "none")
    )
    secure = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=names)
    ports = {
        80: plain.sockets[0].getsockname()[1],
        443: secure.sockets[0].getsockname()[1],
    }

    async def resolver(host: str, port: int) -> list[tuple[str, int]]:
        dialed.append((host, port))
        return [(address, ports[port])]

    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "ca.pem")
        bundle.write_bytes(outside.pem)
        trusting = ssl.create_default_context(cafile=str(bundle))
    dialer = Dialer(resolver=resolver, networks=[LOOPBACK], tls=trusting)
    policy = EgressPolicy(domains=frozenset(domains or ("api.test", "files.test")), secrets=secrets)
    proxy = EgressProxy(policy, BoxAuthority(_now), dialer)
    try:
        yield World(policy=policy, proxy=proxy, dialer=dialer, received=received, dialed=dialed)
    finally:
        await proxy.close()
        for server in (plain, secure):
            server.close()
