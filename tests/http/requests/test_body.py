"""Request bodies: sizes, encodings, decompression bombs."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest, TooLarge
from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.requests import body as bodies
from antiphon.http.requests.body import zstd


class FakeClient:
    """A client that sends chunks and counts those that were received."""

    def __init__(self, *chunks: bytes, **headers: str) -> None:
        self.chunks = list(chunks)
        self.taken = 0
        names = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.scope = {"type": "http", "headers": list(names.items())}

    async def receive(self) -> dict[str, object]:
        if self.taken == len(self.chunks):
            return {"type": "http.disconnect"}
        self.taken += 1
        return {
            "type": "http.request",
            "body": self.chunks[self.taken - 1],
            "more_body": self.taken < len(self.chunks),
        }


def deflate_raw(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(content) + compressor.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8))
async def test_chunks_are_joined(chunks: list[bytes]) -> None:
    wire = FakeClient(*chunks)
    assert await bodies.read(wire.scope, wire.receive, 1000) == b"".join(chunks)


async def test_content_length_over_the_limit_is_refused_unread() -> None:
    wire = FakeClient(b"x", content_length="11")
    with pytest.raises(TooLarge) as refusal:
        await bodies.read(wire.scope, wire.receive, 10)
    assert refusal.value.code == "request_too_large"
    assert wire.taken == 0


async def test_body_without_content_length_is_refused_at_the_limit() -> None:
    wire = FakeClient(*[b"12345"] * 100)
    with pytest.raises(TooLarge):
        await bodies.read(wire.scope, wire.receive, 10)
    assert wire.taken == 3


async def test_body_of_exactly_the_limit_is_read() -> None:
    wire = FakeClient(b"12345", b"67890", content_length="10")
    assert await bodies.read(wire.scope, wire.receive, 10) == b"1234567890"


@pytest.mark.requirement("CL-ZSTD")
@pytest.mark.parametrize("encoding", ENCODERS)
async def test_body_is_decompressed(encoding: str) -> None:
    content = b'{"model": "m"}' * 100
    wire = FakeClient(ENCODERS[encoding](content), content_encoding=encoding.upper())
    assert await bodies.read(wire.scope, wire.receive, len(content)) == content


async def test_deflate_without_header_is_decompressed() -> None:
    wire = FakeClient(deflate_raw(b"{}"), content_encoding="deflate")
    assert await bodies.read(wire.scope, wire.receive, 10) == b"{}"


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_decompression_bomb_is_refused_at_the_limit(encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(50_000_000))
    assert len(bomb) < 60_000
    wire = FakeClient(bomb, content_encoding=encoding)
    with pytest.raises(TooLarge):
        await bodies.read(wire.scope, wire.receive, 60_000)


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_invalid_compressed_body_is_refused(encoding: str) -> None:
    wire = FakeClient(b"\xff garbage", content_encoding=encoding)
    with pytest.raises(InvalidRequest) as refusal:
        await bodies.read(wire.scope, wire.receive, 1000)
    assert refusal.value.code == "invalid_content_encoding"


@pytest.mark.parametrize("tail", [b"", b"trailing"], ids=["cut", "trailed"])
async def test_truncated_or_trailing_gzip_data_is_refused(tail: bytes) -> None:
    body = gzip.compress(b"{}" * 50)
    wire = FakeClient(body + tail if tail else body[:-10], content_encoding="gzip")
    with pytest.raises(InvalidRequest):
        await bodies.read(wire.scope, wire.receive, 1000)


async def test_unknown_encoding_is_refused_by_name() -> None:
    wire = FakeClient(b"{}", content_encoding="br")
    with pytest.raises(InvalidRequest, match="'br'"):
        await bodies.read(wire.scope, wire.receive, 1000)


async def test_disconnect_during_the_body_raises_client_disconnected() -> None:
    wire = FakeClient(b"a")
    wire.chunks = [b"a", b"b"]
    wire.taken = 2
    with pytest.raises(ClientDisconnected):
        await bodies.read(wire.scope, wire.receive, 1000)


async def test_zstd_frame_with_a_huge_window_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    frame = compressor.compress(b"x" * 100) + compressor.flush()  # its size is not declared
    wire = FakeClient(frame, content_encoding="zstd")
    with pytest.raises(InvalidRequest):
        await bodies.read(wire.scope, wire.receive, 1000)
