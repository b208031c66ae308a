"""Bodies: sizes, encodings, bombs."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest, TooLarge
from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.requests import body as bodies


class Wire:
    """A client that sends pieces; counts those that were asked for."""

    def __init__(self, *pieces: bytes, **headers: str) -> None:
        self.pieces = list(pieces)
        self.taken = 0
        names = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self.scope = {"type": "http", "headers": list(names.items())}

    async def receive(self) -> dict[str, object]:
        if self.taken == len(self.pieces):
            return {"type": "http.disconnect"}
        self.taken += 1
        return {
            "type": "http.request",
            "body": self.pieces[self.taken - 1],
            "more_body": self.taken < len(self.pieces),
        }


def deflate_raw(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(content) + compressor.flush()


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd,
}


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8))
async def test_pieces_are_joined(pieces: list[bytes]) -> None:
    wire = Wire(*pieces)
    assert await bodies.read(wire.scope, wire.receive, 1000) == b"".join(pieces)


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    wire = Wire(b"x", content_length="11")
    with pytest.raises(TooLarge) as refusal:
        await bodies.read(wire.scope, wire.receive, 10)
    assert refusal.value.code == "request_too_large"
    assert wire.taken == 0


async def test_an_undeclared_body_is_refused_where_it_passes_the_limit() -> None:
    wire = Wire(*[b"12345"] * 100)
    with pytest.raises(TooLarge):
        await bodies.read(wire.scope, wire.receive, 10)
    assert wire.taken == 3


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    wire = Wire(b"12345", b"67890", content_length="10")
    assert await bodies.read(wire.scope, wire.receive, 10) == b"1234567890"


@pytest.mark.requirement("CL-ZSTD")
@pytest.mark.parametrize("encoding", ENCODERS)
async def test_encodings_are_undone(encoding: str) -> None:
    content = b'{"model": "m"}' * 100
    wire = Wire(ENCODERS[encoding](content), content_encoding=encoding.upper())
    assert await bodies.read(wire.scope, wire.receive, len(content)) == content


async def test_deflate_without_its_header_is_read_too() -> None:
    wire = Wire(deflate_raw(b"{}"), content_encoding="deflate")
    assert await bodies.read(wire.scope, wire.receive, 10) == b"{}"


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_a_bomb_is_refused_at_the_limit(encoding: str) -> None:
    bomb = ENCODERS[encoding](bytes(50_000_000))
    assert len(bomb) < 60_000
    wire = Wire(bomb, content_encoding=encoding)
    with pytest.raises(TooLarge):
        await bodies.read(wire.scope, wire.receive, 60_000)


@pytest.mark.parametrize("encoding", ENCODERS)
async def test_garbage_is_refused(encoding: str) -> None:
    wire = Wire(b"\xff garbage", content_encoding=encoding)
    with pytest.raises(InvalidRequest) as refusal:
        await bodies.read(wire.scope, wire.receive, 1000)
    assert refusal.value.code == "invalid_content_encoding"


@pytest.mark.parametrize("tail", [b"", b"trailing"], ids=["cut", "trailed"])
async def test_a_gzip_body_must_be_whole_and_alone(tail: bytes) -> None:
    body = gzip.compress(b"{}" * 50)
    wire = Wire(body + tail if tail else body[:-10], content_encoding="gzip")
    with pytest.raises(InvalidRequest):
        await bodies.read(wire.scope, wire.receive, 1000)


async def test_an_unknown_encoding_is_refused_by_name() -> None:
    wire = Wire(b"{}", content_encoding="br")
    with pytest.raises(InvalidRequest, match="'br'"):
        await bodies.read(wire.scope, wire.receive, 1000)


async def test_a_client_that_leaves_in_the_middle_has_left() -> None:
    wire = Wire(b"a")
    wire.pieces = [b"a", b"b"]
    wire.taken = 2
    with pytest.raises(ClientDisconnected):
        await bodies.read(wire.scope, wire.receive, 1000)
