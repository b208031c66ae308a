"""Open connections to servers: name resolution, TLS, and proxies from the environment.

The variables ``http_proxy``, ``https_proxy`` and ``no_proxy`` have the meaning that they have for
Python's ``urllib``. Loopback addresses are always reached directly.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from msgspec import Struct

from antiphon.support.installation import needs_packages

from .exchange import Connection

_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
#: Seconds after which the next address of a host is tried as well (RFC 8305).
_NEXT_ADDRESS_S = 0.25
#: Characters of a path that are sent as they are.
_SAFE = "/%:@!$&'()*+,;=-._~?"


class Target(Struct, frozen=True):
    """Where a request goes.

    - ``scheme``: ``http`` or ``https``. ``host``, ``port``: the address of the server.
    - ``authority``: the value of the header ``host``.
    - ``path``: the path with the query, percent-encoded.
    - ``proxy``: the URL of the proxy; None for a direct connection.
    - ``credentials``: ``USER:PASSWORD`` from the URL; None if it has none.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path: str
    proxy: str | None = None
    credentials: str | None = None

    @property
    def is_forwarded(self) -> bool:
        """Whether the request itself is sent to a proxy. TLS goes through a tunnel instead."""
        return self.proxy is not None and self.scheme == "http"


def split_url(url: str) -> Target:
    """Return the parts of a URL that a request needs. Raises ``ValueError``."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"not an HTTP address: {url!r}")
    host = parts.hostname
    if not host.isascii():
        host = host.encode("idna").decode()
    port = parts.port or _PORTS[parts.scheme]
    name = f"[{host}]" if ":" in host else host
    return Target(
        parts.scheme,
        host,
        port,
        name if port == _PORTS[parts.scheme] else f"{name}:{port}",
        quote(parts.path or "/", _SAFE) + (f"?{quote(parts.query, _SAFE)}" if parts.query else ""),
        _proxy(parts.scheme, host),
        _credentials(parts),
    )


def _proxy(scheme: str, host: str) -> str | None:
    if host == "localhost":
        return None
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    url = getproxies_environment().get(scheme)
    return None if url is None or proxy_bypass(host) else url


def _credentials(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}"


class Connector:
    """Opens connections. ``connect_s``: time limit in seconds for a connection, with its TLS
    handshake. Raises ``SetupError`` if aiohappyeyeballs is not installed."""

    def __init__(self, connect_s: float) -> None:
        with needs_packages("The HTTP client for upstreams is not installed", "upstream"):
            import aiohappyeyeballs  # noqa: F401
        self._connect_s = connect_s
        self._tls: ssl.SSLContext | None = None

    async def open(self, target: Target, connection: Connection, name: str | None) -> None:
        """Connect to the server, or to the proxy in front of it.

        ``name``: the name that the server's certificate must have, if it is not ``target.host``.
        Raises ``OSError``, and ``TimeoutError`` after ``connect_s``.
        """
        async with asyncio.timeout(self._connect_s):
            if target.proxy is not None:
                await self._open_through_proxy(target, target.proxy, connection, name)
            else:
                tls = await self._tls_context() if target.scheme == "https" else None
                await _connect(target.host, target.port, connection, tls, name or target.host)

    async def _open_through_proxy(
        self, target: Target, url: str, connection: Connection, name: str | None
    ) -> None:
        proxy = urlsplit(url if "://" in url else f"http://{url}")
        if proxy.scheme != "http" or not proxy.hostname:
            raise ConnectionError("the proxy in the environment has no http:// address")
        await _connect(proxy.hostname, proxy.port or 80, connection)
        if target.is_forwarded:
            return
        await _open_tunnel(target, proxy_headers(url), connection, self._connect_s)
        transport = connection.transport
        assert transport is not None
        secured = await asyncio.get_running_loop().start_tls(
            transport,
            connection,
            await self._tls_context(),
            server_hostname=name or target.host,
        )
        if secured is None:
            raise ConnectionError("the connection was closed during the TLS handshake")
        connection.replace_transport(secured)

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS context with the certificates of the system. Reading them takes long, so
        it happens once and in a thread."""
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self._tls


def proxy_headers(url: str) -> dict[str, str]:
    """Return the headers that the proxy itself needs."""
    credentials = _credentials(urlsplit(url if "://" in url else f"http://{url}"))
    if credentials is None:
        return {}
    return {"proxy-authorization": f"Basic {b64encode(credentials.encode()).decode()}"}


async def _connect(
    host: str,
    port: int,
    connection: Connection,
    tls: ssl.SSLContext | None = None,
    name: str | None = None,
) -> None:
    from aiohappyeyeballs import start_connection

    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    opened = await start_connection(
        addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, loop=loop
    )
    try:
        await loop.create_connection(
            lambda: connection, sock=opened, ssl=tls, server_hostname=name if tls else None
        )
    except BaseException:
        opened.close()
        raise


async def _open_tunnel(
    target: Target, headers: Mapping[str, str], connection: Connection, silence_s: float
) -> None:
    """Let the proxy connect to the server (``CONNECT``)."""
    place = f"{target.host}:{target.port}" if ":" not in target.host else target.authority
    lines = [f"CONNECT {place} HTTP/1.1", f"host: {place}"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    exchange = connection.send("\r\n".join((*lines, "\r\n")).encode(), b"", silence_s)
    await exchange.wait_for_head()
    if exchange.status != 200:
        raise ConnectionError(f"the proxy answers with status {exchange.status}")
