"""Parse the HTTP/1.1 requests that a box (sandbox environment) sends to its proxy. The parser is
strict: it refuses ambiguous requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from msgspec import Struct

_REQUEST_LINE = re.compile(r"([A-Z]{1,20}) ([!-~]{1,16384}) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}):([\t -~\x80-\xff]*)")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})(?:[ \t]*;[\t -~]*)?\r\n")
_LENGTH = re.compile(r"[0-9]{1,15}")
_PIECE_BYTES = 1 << 16
#: Headers that are not forwarded: those that apply to one connection only (RFC 9110, section
#: 7.6.1), and those that the proxy writes itself.
_DROPPED = frozenset(
    {"connection", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "content-length", "upgrade"}
)


class InvalidProxyRequest(ValueError):
    """Raised for a request that the proxy cannot forward. The message contains the reason."""


class ProxyRequest(Struct, frozen=True, kw_only=True):
    """A request that a box (sandbox environment) sends to its proxy.

    - ``host``, ``port``: the server to which the request is forwarded.
    - ``target``: the request target (path and query) for this server.
    - ``headers``: the headers that are forwarded.
    - ``length``: number of bytes in the body. None if the body is chunked.
    """

    method: str
    host: str
    port: int
    target: str
    headers: tuple[tuple[str, str], ...]
    length: int | None = 0

    def head(self) -> str:
        """Return the request line and the headers that the proxy sends to the destination
        server."""
        port = "" if self.port in (80, 443) else f":{self.port}"
        lines = [f"{self.method} {self.target} HTTP/1.1", f"Host: {self.host}{port}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.length is None:
            lines.append("Transfer-Encoding: chunked")
        elif self.length or self.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {self.length}")
        return "\r\n".join([*lines, "Connection: close", "", ""])


async def read_request(
    reader: asyncio.StreamReader, tunnel: tuple[str, int] | None = None
) -> ProxyRequest:
    """Read the request line and the headers of a request. ``tunnel``: host and port of the CONNECT
    tunnel through which the request came. None if it came through no tunnel. Raises
    ``InvalidProxyRequest``, ``EOFError``."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise InvalidProxyRequest("The headers are too long.") from None
    first, *lines = head[:-4].split("\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise InvalidProxyRequest("The request line is invalid.")
    method, target = matched.groups()
    headers = [_header(line) for line in lines]
    if method == "CONNECT":
        host, port = _authority(target, None)
        return ProxyRequest(method=method, host=host, port=port, target=target, headers=())
    if tunnel is None:
        host, port, target = _absolute(target)
    else:
        host, port = tunnel
        _check_host(headers, tunnel)
    return ProxyRequest(
        method=method,
        host=host,
        port=port,
        target=target,
        headers=tuple(each for each in headers if each[0].lower() not in _DROPPED),
        length=_length(headers),
    )


async def read_body(reader: asyncio.StreamReader, length: int | None) -> AsyncIterator[bytes]:
    """Yield the body of a request in pieces that can be forwarded unchanged. If the body is
    chunked, the pieces therefore include the chunk sizes. ``length``: number of bytes, or None for
    a chunked body. Raises ``InvalidProxyRequest`` for an invalid chunk, and ``EOFError`` if the
    body is incomplete."""
    if length is not None:
        while length:
            piece = await reader.read(min(length, _PIECE_BYTES))
            if not piece:
                raise EOFError
            length -= len(piece)
            yield piece
        return
    while True:
        matched = _CHUNK_SIZE.fullmatch(await reader.readuntil(b"\r\n"))
        if matched is None:
            raise InvalidProxyRequest("A chunk of the body is invalid.")
        size = int(matched[1], 16)
        if not size:
            break
        yield b"%x\r\n" % size
        async for piece in read_body(reader, size):
            yield piece
        if await reader.readexactly(2) != b"\r\n":
            raise InvalidProxyRequest("A chunk of the body is invalid.")
        yield b"\r\n"
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are not forwarded
    yield b"0\r\n\r\n"


def _header(line: str) -> tuple[str, str]:
    matched = _HEADER.fullmatch(line)
    if matched is None:
        raise InvalidProxyRequest("A header is invalid.")
    return matched[1], matched[2].strip(" \t")


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    """Split ``host:port`` into host and port. ``default_port``: the port if ``text`` contains none.
    None means that ``text`` must contain a port. Raises ``InvalidProxyRequest``."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port or default_port
    except ValueError:
        port = None
    if port is None or not parts.hostname or parts.username is not None or parts.path:
        raise InvalidProxyRequest("The address of the server is invalid.")
    return parts.hostname.lower(), port


def _absolute(target: str) -> tuple[str, int, str]:
    """Split a URL into host, port, and path with query. Raises ``InvalidProxyRequest``."""
    scheme, found, rest = target.partition("://")
    if not found or scheme.lower() != "http":
        raise InvalidProxyRequest("A request to the proxy must name a URL with http://.")
    authority, slash, path = rest.partition("/")
    if "?" in authority or "#" in authority:
        raise InvalidProxyRequest("The URL has no path.")
    return *_authority(authority, 80), f"{slash or '/'}{path}"


def _check_host(headers: list[tuple[str, str]], tunnel: tuple[str, int]) -> None:
    """Raise ``InvalidProxyRequest`` if the Host header names another host than the CONNECT tunnel
    of the request."""
    hosts = [value for name, value in headers if name.lower() == "host"]
    if any(_authority(host, tunnel[1]) != tunnel for host in hosts):
        raise InvalidProxyRequest("The Host header names another host than the CONNECT request.")


def _length(headers: list[tuple[str, str]]) -> int | None:
    """Return the length of the body in bytes. Return None if the body is chunked. Raises
    ``InvalidProxyRequest``."""
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    encodings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if encodings and (lengths or [each.lower() for each in encodings] != ["chunked"]):
        raise InvalidProxyRequest("The length of the body is ambiguous.")
    if encodings:
        return None
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise InvalidProxyRequest("The length of the body is invalid.")
    return int(lengths[0]) if lengths else 0
