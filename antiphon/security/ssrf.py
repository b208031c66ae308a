"""Protection against SSRF (server-side request forgery). This module decides to which IP addresses
the server may connect if a URL comes from a client.

By default, only public addresses are allowed. The address of each socket is checked when the socket
is created. A check of the URL would not be safe: a host name can resolve to another address a
moment later, and an address can be written in several ways.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.errors import SetupError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The argument of aiohttp's socket factory: family, type, protocol, canonical name and socket
#: address. The first element of the socket address is the IP address.
AddrInfo = tuple[Any, Any, int, str, tuple[Any, ...]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: The range from which IANA allocates global unicast addresses.
_GLOBAL = ipaddress.IPv6Network("2000::/3")


class AddressNotAllowed(OSError):
    """Error for a connection to an IP address to which the server must not connect, such as a
    private address."""


def is_public(address: str) -> bool:
    """Return whether an IP address is a public unicast address. If an IPv6 address contains an IPv4
    address, that IPv4 address is checked instead."""
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

    The factory allows public addresses and addresses in ``networks``. If ``private`` is True, it
    allows all addresses. For other addresses, it raises ``AddressNotAllowed``.
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

    These are the public addresses and the addresses in ``networks``. If ``private`` is True, all
    addresses are allowed. The session stores no cookies and caches no host names. ``resolver``
    resolves host names; None means aiohttp's resolver. ``timeout_s``: maximum total duration of a
    request, in seconds. Raises ``ImportError`` if aiohttp is not installed.
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
    """Parse an IP address or a network. ``setting``: name of its setting, for the error message.
    Raises ``SetupError``."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise SetupError(f"{setting}: {error}") from None


def may_dial(address: str, networks: Sequence[Network] = ()) -> bool:
    """Return whether an IP address is public or in one of ``networks``."""
    return is_public(address) or _within(address, networks)


def _within(host: str, networks: Sequence[Network]) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)


def is_loopback(host: str) -> bool:
    """Return whether the host is ``localhost`` or a loopback address. An IPv6 address may be in
    brackets."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_ip_address(host: str) -> bool:
    """Return whether the host is an IP address and not a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
