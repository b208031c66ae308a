"""Where a request may go: never to this machine or its network, unless the operator allows it.

What is checked is the address that is connected to, not the name: a name may mean another address
a moment later.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import SetupError

__all__ = ["Guarded", "Refused", "check_url", "is_public"]

#: Resolves host, port and family to what aiohttp's resolvers give.
Resolve = Callable[[str, int, socket.AddressFamily], Awaitable[list[Any]]]


class Refused(OSError):
    """An address that must not be dialled."""


def is_public(address: str) -> bool:
    """A unicast address of the public internet. IPv4 within IPv6 counts as what it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is not None:
            found = inner
        elif found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def check_url(url: str, *, private: bool) -> None:
    """Raises ``SetupError`` for a URL that nothing can be sent to safely. ``private``: addresses
    of this machine and its network are allowed, and ``http`` with them."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise SetupError(f"webhook_url must begin with https://, not {parts.scheme or 'nothing'}.")
    if not parts.hostname or parts.username or parts.password:
        raise SetupError("webhook_url must name a host, and no user or password.")
    if not private and _is_literal(parts.hostname) and not is_public(parts.hostname):
        raise SetupError(f"webhook_url must not be a private address: {parts.hostname}.")


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Guarded:
    """A resolver for aiohttp that gives public addresses only, or raises ``Refused``."""

    def __init__(self, inner: Any, *, private: bool) -> None:
        self._inner = inner
        self._private = private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[Any]:
        """What the name means now, every address of it checked."""
        found: list[Any] = await self._inner.resolve(host, port, family)
        if not self._private and not all(is_public(each["host"]) for each in found):
            raise Refused(f"{host} is a private address")
        return found

    async def close(self) -> None:
        """Done."""
        await self._inner.close()
