"""Read and decompress request bodies up to a limit."""

from __future__ import annotations

import asyncio
import io
import sys
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope

from antiphon.errors import InvalidRequest, TooLarge
from antiphon.http.middleware.request_context import ClientDisconnected, header, request_context
from antiphon.limits.requests import RequestLimits
from antiphon.wire.parsing.json_body import BodyLimits, is_costly

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_T = TypeVar("_T")

#: Logarithm of the largest window of a zstd frame, so that a frame cannot demand any amount of
#: memory. RFC 8878 recommends 8 MiB.
_ZSTD_OPTIONS: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 23}


#: Seconds after which the access of a client that is still sending its body is checked again.
_RECHECK_S = 0.5


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body, decompressed. ``limit``: maximum bytes before and after decompression.

    Raises ``ClientDisconnected``. Raises ``InvalidRequest`` for an unsupported or invalid encoding.
    Raises ``TooLarge`` for a body over the limit. If the content-length header already exceeds the
    limit, the body is not read. Raises ``Unauthorized`` if the client has lost its access while it
    sent a slow body.
    """
    _check_declared(scope, limit)
    encoding = header(scope, b"content-encoding")
    began = time.monotonic()
    if encoding is None:
        body = await _receive_all(receive, limit)
    else:
        body = await _read_encoded(receive, limit, encoding.decode("latin-1").strip().lower())
    if time.monotonic() - began > _RECHECK_S:
        await request_context(scope).check_access()
    return body


async def parse(
    request: Request, limits: RequestLimits, parser: Callable[[bytes, BodyLimits], _T]
) -> _T:
    """Read the whole body and parse it. Raises the errors of ``read`` and of ``parser``."""
    body = await read(request.scope, request.receive, limits.max_body_bytes)
    return await parsed(body, limits, parser)


async def parsed(
    body: bytes, limits: RequestLimits, parser: Callable[[bytes, BodyLimits], _T]
) -> _T:
    """Parse a body. A costly one is parsed in a thread, where tenants take turns, so that it does
    not hold up the requests of others. Raises the errors of ``parser``."""
    if is_costly(body):
        return await asyncio.to_thread(parser, body, limits.body)
    return parser(body, limits.body)


async def _receive_all(receive: Receive, limit: int) -> bytes:
    body, more = await _receive_piece(receive, limit, 0)
    if not more:  # the usual case
        return body
    pieces, size = [body], len(body)
    while more:
        piece, more = await _receive_piece(receive, limit, size)
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


async def _read_encoded(receive: Receive, limit: int, encoding: str) -> bytes:
    """Return the whole body, decompressed if necessary. ``encoding``: the content-encoding of the
    body."""
    inflate = _INFLATE.get(encoding)
    if inflate is None and encoding not in ("identity", ""):
        raise InvalidRequest(
            f"Unsupported content-encoding: '{encoding}'. Use gzip, deflate, zstd or none.",
            code="unsupported_content_encoding",
        )
    body = await _receive_all(receive, limit)
    if inflate is None:
        return body
    try:
        # In a thread: a small body can decompress to megabytes.
        body = await asyncio.to_thread(inflate, body, limit + 1)
    except (zlib.error, zstd.ZstdError, EOFError):
        raise InvalidRequest(
            f"The request body is not valid {encoding}.", code="invalid_content_encoding"
        ) from None
    if len(body) > limit:
        raise too_large(limit)
    return body


async def stream(scope: Scope, receive: Receive, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the body in chunks. Raises ``InvalidRequest`` for a compressed body, ``TooLarge`` for a
    body over ``limit`` bytes, and ``ClientDisconnected``."""
    _check_declared(scope, limit)
    if (header(scope, b"content-encoding") or b"identity").strip().lower() != b"identity":
        raise InvalidRequest("A form must not be compressed.", code="unsupported_content_encoding")
    size, more = 0, True
    while more:
        piece, more = await _receive_piece(receive, limit, size)
        size += len(piece)
        yield piece


def _check_declared(scope: Scope, limit: int) -> None:
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise too_large(limit)


async def _receive_piece(receive: Receive, limit: int, size: int) -> tuple[bytes, bool]:
    """Return the next piece of the body, and whether more pieces follow. ``size``: bytes received
    before this piece."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    piece: bytes = message.get("body", b"")
    if size + len(piece) > limit:
        raise too_large(limit)
    return piece, message.get("more_body", False)


def too_large(limit: int) -> TooLarge:
    """Return the error for a body over ``limit`` bytes."""
    return TooLarge(
        f"The request body is larger than this server accepts ({limit} bytes).",
        code="request_too_large",
    )


def _zlib(bits: int) -> Callable[[bytes, int], bytes]:
    def inflate(body: bytes, max_bytes: int) -> bytes:
        inflater = zlib.decompressobj(bits)
        inflated = inflater.decompress(body, max_bytes)
        if (not inflater.eof and len(inflated) < max_bytes) or inflater.unused_data:
            raise EOFError
        return inflated

    return inflate


def _deflate(body: bytes, max_bytes: int) -> bytes:
    # RFC 9110 8.4.1.2: "deflate" is zlib's format, but some senders omit its header.
    try:
        return _zlib(zlib.MAX_WBITS)(body, max_bytes)
    except zlib.error:
        return _zlib(-zlib.MAX_WBITS)(body, max_bytes)


def _zstd(body: bytes, max_bytes: int) -> bytes:
    with zstd.ZstdFile(io.BytesIO(body), options=_ZSTD_OPTIONS) as reader:
        return reader.read(max_bytes)


_INFLATE: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": _zlib(16 + zlib.MAX_WBITS),
    "x-gzip": _zlib(16 + zlib.MAX_WBITS),
    "deflate": _deflate,
    "zstd": _zstd,
}
