"""Request bodies: read up to a limit, inflated up to the same limit. It does not know what is in
them.
"""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping

import zstandard
from starlette.types import Receive, Scope

from antiphon.errors import InvalidRequest, TooLarge
from antiphon.http.middleware.request_context import ClientDisconnected, header

__all__ = ["pieces", "read", "too_large"]

#: A frame that needs a bigger window than this (the format's recommended bound is 8 MiB) is
#: refused rather than given the memory it asks for.
_ZSTD_WINDOW = 8 * 2**20


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, inflated. ``limit``: bytes, before and after inflation.

    Raises ``TooLarge`` as soon as that is certain (from the declared length, if there is one),
    ``InvalidRequest`` for an encoding we do not read, ``ClientLeft``.
    """
    _check_declared(scope, limit)
    encoding = (header(scope, b"content-encoding") or b"identity").decode("latin-1").strip().lower()
    inflate = _INFLATE.get(encoding)
    if inflate is None and encoding not in ("identity", ""):
        raise InvalidRequest(
            f"Unsupported content-encoding: '{encoding}'. Use gzip, deflate, zstd or none.",
            code="unsupported_content_encoding",
        )
    body = b"".join([piece async for piece in _received(receive, limit)])
    if inflate is None:
        return body
    try:
        # Megabytes of zeros come out of a small body: not on the event loop.
        body = await asyncio.to_thread(inflate, body, limit + 1)
    except (zlib.error, zstandard.ZstdError, EOFError):
        raise InvalidRequest(
            f"The request body is not valid {encoding}.", code="invalid_content_encoding"
        ) from None
    if len(body) > limit:
        raise too_large(limit)
    return body


async def pieces(scope: Scope, receive: Receive, limit: int) -> AsyncGenerator[bytes, None]:
    """The body as it comes, which is not inflated. Raises as ``read`` does."""
    _check_declared(scope, limit)
    if (header(scope, b"content-encoding") or b"identity").strip().lower() != b"identity":
        raise InvalidRequest("A form must not be compressed.", code="unsupported_content_encoding")
    async for piece in _received(receive, limit):
        yield piece


def _check_declared(scope: Scope, limit: int) -> None:
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise too_large(limit)


async def _received(receive: Receive, limit: int) -> AsyncGenerator[bytes, None]:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        yield piece
        more = message.get("more_body", False)


def too_large(limit: int) -> TooLarge:
    """The refusal of a body over ``limit`` bytes."""
    return TooLarge(
        f"The request body is larger than this server takes ({limit} bytes).",
        code="request_too_large",
    )


def _zlib(bits: int) -> Callable[[bytes, int], bytes]:
    def inflate(body: bytes, most: int) -> bytes:
        inflater = zlib.decompressobj(bits)
        inflated = inflater.decompress(body, most)
        if (not inflater.eof and len(inflated) < most) or inflater.unused_data:
            raise EOFError
        return inflated

    return inflate


def _deflate(body: bytes, most: int) -> bytes:
    # RFC 9110 8.4.1.2: "deflate" is zlib's format, but some senders leave its header out.
    try:
        return _zlib(zlib.MAX_WBITS)(body, most)
    except zlib.error:
        return _zlib(-zlib.MAX_WBITS)(body, most)


def _zstd(body: bytes, most: int) -> bytes:
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with inflater.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        return reader.read(most)


_INFLATE: Mapping[str, Callable[[bytes, int], bytes]] = {
    "gzip": _zlib(16 + zlib.MAX_WBITS),
    "x-gzip": _zlib(16 + zlib.MAX_WBITS),
    "deflate": _deflate,
    "zstd": _zstd,
}
