"""Where this server may dial: never itself or its network, unless the operator allows it.

What is checked is the address of each socket that is made: a name may mean another address a moment
later, and there are more ways to write an address than one.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.errors import SetupError

__all__ = ["Network", "Refused", "is_literal", "is_public", "may_dial", "network", "sockets"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

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


def sockets(
    *, private: bool = False, networks: Sequence[Network] = ()
) -> Callable[[Wanted], socket.socket]:
    """What makes the sockets of aiohttp's connector. It raises ``Refused`` for an address that is
    not public, unless ``private`` ones are allowed, or it lies in one of the ``networks``."""

    def made(wanted: Wanted) -> socket.socket:
        family, kind, protocol, _, (host, *_) = wanted
        if not (private or may_dial(str(host), networks)):
            raise Refused("not a public address")
        return socket.socket(family, kind, protocol)

    return made


def network(text: str, setting: str) -> Network:
    """An address or a network of a setting. Raises ``SetupError``."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SetupError(f"{setting}: {error}") from None


def may_dial(address: str, networks: Sequence[Network] = ()) -> bool:
    """A public address, or one of the ``networks``."""
    return is_public(address) or _within(address, networks)


def _within(host: str, networks: Sequence[Network]) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def is_literal(host: str) -> bool:
    """An address that is written out, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
