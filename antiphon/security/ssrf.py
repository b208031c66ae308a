"""SSRF guard: decides which IP addresses the server may connect to.

By default only public addresses are allowed. The check applies to the address of each socket when
the socket is created. It does not apply to the URL, because a host name can resolve to another
address a moment later, and an address can be written in several ways.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.errors import SetupError

__all__ = [
    "AddressNotAllowed",
    "Network",
    "guarded_session",
    "is_ip_address",
    "is_loopback",
    "is_public",
    "may_dial",
    "parse_network",
    "socket_factory",
]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The argument of aiohttp's socket factory: family, type, protocol, canonical name, and the socket
#: address, whose first element is the host.
AddrInfo = tuple[Any, Any, int, str, tuple[Any, ...]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: The range IANA allocates global unicast addresses from.
_GLOBAL = ipaddress.IPv6Network("2000::/3")


class AddressNotAllowed(OSError):
    """Raised for a connection to an address that is not allowed."""


def is_public(address: str) -> bool:
    """Whether an IP address is a public unicast address. For an IPv6 address that embeds an IPv4
    address, the IPv4 address decides."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1]
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is None:
            return parsed in _GLOBAL and parsed.is_global
        parsed = inner
    return parsed.is_global and not parsed.is_multicast


def socket_factory(
    *, private: bool = False, networks: Sequence[Network] = ()
) -> Callable[[AddrInfo], socket.socket]:
    """Return a socket factory for aiohttp's connector.

    The factory raises ``AddressNotAllowed`` for an address that is neither public nor in one of
    ``networks``. If ``private`` is true, all addresses are allowed.
    """

    def create_socket(info: AddrInfo) -> socket.socket:
        family, kind, protocol, _, (host, *_) = info
        if not (private or may_dial(str(host), networks)):
            raise AddressNotAllowed("not a public address")
        return socket.socket(family, kind, protocol)

    return create_socket


def guarded_session(
    *,
    timeout_s: float,
    headers: Mapping[str, str],
    private: bool = False,
    networks: Sequence[Network] = (),
    resolver: Any = None,
    auto_decompress: bool = True,
) -> Any:
    """Return an aiohttp session that connects only to allowed addresses.

    It stores no cookies and caches no host names. ``private`` and ``networks``: see
    ``socket_factory``. ``resolver``: None means aiohttp's resolver. ``timeout_s``: maximum total
    duration of a request, in seconds. Raises ``ImportError`` if aiohttp is not installed.
    """
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=resolver or aiohttp.ThreadedResolver(),
            socket_factory=socket_factory(private=private, networks=networks),
            use_dns_cache=False,
            force_close=True,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        auto_decompress=auto_decompress,
        headers=dict(headers),
    )


def parse_network(text: str, setting: str) -> Network:
    """Parse an address or a network from a setting. Raises ``SetupError``."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SetupError(f"{setting}: {error}") from None


def may_dial(address: str, networks: Sequence[Network] = ()) -> bool:
    """Whether the address is public or in one of ``networks``."""
    return is_public(address) or _within(address, networks)


def _within(host: str, networks: Sequence[Network]) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def is_loopback(host: str) -> bool:
    """Whether the host is ``localhost`` or a loopback address, with or without brackets."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_ip_address(host: str) -> bool:
    """Whether the host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
