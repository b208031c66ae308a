"""Open connections from the proxy of a box (sandbox environment) to the servers that the box may
reach."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from antiphon.security.ssrf import Network, may_dial

#: Resolves a host and a port to a list of addresses with ports. The best address comes first.
#: Raises ``OSError``.
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[tuple[str, int]]]]

_CONNECT_S = 10.0


async def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    """Resolve a host name with the resolver of the operating system. Return the IP addresses with
    ports."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(each[4][0]), int(each[4][1])) for each in found]


class Dialer:
    """Connects to servers on behalf of boxes (sandbox environments). A server must have a public
    address or an address in ``networks``.

    - ``resolver``: resolves host names.
    - ``tls``: the context that verifies the certificates of servers. By default, it trusts the
      certificate authorities of the operating system.
    """

    def __init__(
        self,
        *,
        resolver: Resolver = resolve,
        networks: Sequence[Network] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._resolver = resolver
        self._networks = networks
        self._tls = tls

    async def connect(
        self, host: str, port: int, *, uses_tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a server. Raises ``OSError`` if the connection fails, or if the server's IP
        address is neither public nor in an allowed network."""
        async with asyncio.timeout(_CONNECT_S):
            addresses = await self._resolver(host, port)
            allowed = [each for each in addresses if may_dial(each[0], self._networks)]
            if not allowed:
                raise OSError("its address is not allowed")
            address, real_port = allowed[0]
            if not uses_tls:
                return await asyncio.open_connection(address, real_port)
            if self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            return await asyncio.open_connection(
                address, real_port, ssl=self._tls, server_hostname=host
            )
