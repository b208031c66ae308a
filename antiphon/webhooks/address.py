"""Where a request may go: never to this machine or its network, unless the operator allows it.

What is checked is the address of each socket that is made: a name may mean another address a moment
later, and there are more ways to write an address than one.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from antiphon.errors import SetupError

__all__ = ["Refused", "check_url", "is_public", "sockets"]

#: What aiohttp wants a socket for: family, type, protocol, name, and the address as the family
#: writes it, the host first.
Wanted = tuple[Any, Any, int, str, tuple[Any, ...]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: All that IANA has given out for unicast beyond one's own network.
_GLOBAL = ipaddress.IPv6Network("2000::/3")


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
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is None:
            return found in _GLOBAL and found.is_global
        found = inner
    return found.is_global and not found.is_multicast


def sockets(*, private: bool) -> Callable[[Wanted], socket.socket]:
    """What makes the sockets of aiohttp's connector. It raises ``Refused`` for an address that is
    not public, unless ``private`` ones are allowed."""

    def made(wanted: Wanted) -> socket.socket:
        family, kind, protocol, _, (host, *_) = wanted
        if not private and not is_public(str(host)):
            raise Refused("not a public address")
        return socket.socket(family, kind, protocol)

    return made


def check_url(url: str, *, private: bool) -> None:
    """Raises ``SetupError`` for a URL that nothing can be sent to safely. ``private``: addresses
    of this machine and its network are allowed, and ``http`` with them."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SetupError(f"webhook_url is not a URL: {error}.") from None
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise SetupError(f"webhook_url must begin with https://, not {parts.scheme or 'nothing'}.")
    if not host or port == 0 or parts.username is not None or parts.password is not None:
        raise SetupError("webhook_url must name a host, and no user or password.")
    if not private and _is_literal(host) and not is_public(host):
        raise SetupError(f"webhook_url must not be a private address: {host}.")


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
