"""Read and decompress request bodies up to a limit.

Large bodies share an amount of memory (``RequestContext.hold_memory``). A body takes all that it
needs before it is read, and holds it until the request ends, because most of the content lives as
long. Until then, it waits: the server does not read from its connection.
"""

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


#: Bodies up to this size need not wait for memory.
SMALL_BYTES = 2**18
#: Bodies of this size are joined in a thread, because that takes some milliseconds.
_LARGE_BYTES = 2**22
#: Name among the ``extensions`` of a WebSocket's scope: the function of the app that waits until a
#: large message may take its memory. The server calls it before it receives such a message.
HOLD_MESSAGE = "antiphon.hold_message"
#: Seconds after which the access of a client that is still sending its body is checked again.
_RECHECK_S = 0.5


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the whole body, decompressed. ``limit``: maximum bytes before and after decompression.

    Raises ``ClientDisconnected``. Raises ``InvalidRequest`` for an unsupported or invalid encoding.
    Raises ``TooLarge`` for a body over the limit. If the content-length header already exceeds the
    limit, the body is not read. Raises ``Unauthorized`` if the client has lost its access while it
    sent a slow body.
    """
    encoding = header(scope, b"content-encoding")
    began = time.monotonic()
    if encoding is None:
        body = await _receive_all(scope, receive, limit)
    else:
        name = encoding.decode("latin-1").strip().lower()
        body = await _read_encoded(scope, receive, limit, name)
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


async def _receive_all(scope: Scope, receive: Receive, limit: int, more_bytes: int = 0) -> bytes:
    """Return the whole body. ``more_bytes``: memory that a large body needs besides its own."""
    declared = declared_size(scope, limit)
    if declared > SMALL_BYTES:
        await request_context(scope).hold_memory(declared + more_bytes)
    body, more = await _receive_piece(receive, limit, 0)
    if not more:  # the usual case
        return body
    pieces, size = [body], len(body)
    while more:
        if size > SMALL_BYTES >= declared and not request_context(scope).held_memory:
            await request_context(scope).hold_memory(limit + more_bytes)
        piece, more = await _receive_piece(receive, limit, size)
        pieces.append(piece)
        size += len(piece)
    if size > SMALL_BYTES >= declared:
        request_context(scope).keep_memory(size + more_bytes)
    if size > _LARGE_BYTES:
        return await asyncio.to_thread(b"".join, pieces)
    return b"".join(pieces)


async def _read_encoded(scope: Scope, receive: Receive, limit: int, encoding: str) -> bytes:
    """Return the whole body, decompressed if necessary. ``encoding``: the content-encoding of the
    body."""
    inflate = _INFLATE.get(encoding)
    if inflate is None and encoding not in ("identity", ""):
        raise InvalidRequest(
            f"Unsupported content-encoding: '{encoding}'. Use gzip, deflate, zstd or none.",
            code="unsupported_content_encoding",
        )
    if inflate is None:
        return await _receive_all(scope, receive, limit)
    body = await _receive_all(scope, receive, limit, limit)
    try:
        # In a thread: a small body can decompress to megabytes.
        inflated = await asyncio.to_thread(inflate, body, min(limit, SMALL_BYTES) + 1)
        if len(inflated) > SMALL_BYTES:
            context = request_context(scope)
            if not context.held_memory:
                await context.hold_memory(limit)
            inflated = await asyncio.to_thread(inflate, body, limit + 1)
            context.keep_memory(len(inflated))
    except (zlib.error, zstd.ZstdError, EOFError):
        raise InvalidRequest(
            f"The request body is not valid {encoding}.", code="invalid_content_encoding"
        ) from None
    if len(inflated) > limit:
        raise too_large(limit)
    return inflated


async def stream(scope: Scope, receive: Receive, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the body in chunks. Raises ``InvalidRequest`` for a compressed body, ``TooLarge`` for a
    body over ``limit`` bytes, and ``ClientDisconnected``."""
    declared_size(scope, limit)
    if (header(scope, b"content-encoding") or b"identity").strip().lower() != b"identity":
        raise InvalidRequest("A form must not be compressed.", code="unsupported_content_encoding")
    size, more = 0, True
    while more:
        piece, more = await _receive_piece(receive, limit, size)
        size += len(piece)
        yield piece


def declared_size(scope: Scope, limit: int) -> int:
    """Return the declared size of the body, or 0. Raises ``TooLarge``."""
    declared = header(scope, b"content-length")
    size = int(declared) if declared is not None and declared.isdigit() else 0
    if size > limit:
        raise too_large(limit)
    return size


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
