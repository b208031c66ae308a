"""Checks of the contract of ``Blobs``, the external storage for contents of files."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping

from antiphon.blobs.base import Blobs
from antiphon.blobs.object_storage import SEGMENT_BYTES
from antiphon.errors import StoreError
from antiphon.store.files import BlobRef

from .checks import checks_of

__all__ = ["CHECKS", "read_blob"]

Check = Callable[[Blobs], Awaitable[None]]

#: A content that is longer than one segment and ends within the second segment.
_CONTENT = hashlib.shake_256(b"content").digest(SEGMENT_BYTES + 70_001)


async def _chunks(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def read_blob(blobs: Blobs, blob: BlobRef, start: int = 0, end: int | None = None) -> bytes:
    """Return the bytes of a blob from ``start`` up to, but not including, ``end``."""
    return b"".join([piece async for piece in blobs.read(blob, start, end)])


async def _keys(blobs: Blobs) -> set[str]:
    return {each.key async for each in blobs.list()}


async def stores_and_reads_content(blobs: Blobs) -> None:
    cut = (_CONTENT[:1], _CONTENT[1:70_000], b"", _CONTENT[70_000:])
    blob = await blobs.put(_chunks(cut))
    assert blob.bytes == len(_CONTENT)
    assert blob.sha256 == hashlib.sha256(_CONTENT).hexdigest()
    assert await read_blob(blobs, blob) == _CONTENT
    for start, end in (
        (0, 1),
        (5, 5),
        (SEGMENT_BYTES - 3, SEGMENT_BYTES + 3),
        (len(_CONTENT), None),
    ):
        assert await read_blob(blobs, blob, start, end) == _CONTENT[start:end]
    assert await read_blob(blobs, blob, len(_CONTENT) - 7, len(_CONTENT) + 9) == _CONTENT[-7:]


async def stores_empty_content(blobs: Blobs) -> None:
    blob = await blobs.put(_chunks(()))
    assert (blob.bytes, blob.sha256) == (0, hashlib.sha256().hexdigest())
    assert await read_blob(blobs, blob) == b""
    await blobs.delete(blob.key)


async def deletes_content(blobs: Blobs) -> None:
    first, second = [await blobs.put(_chunks((name,))) for name in (b"a", b"b")]
    assert await _keys(blobs) == {first.key, second.key}
    await blobs.delete(first.key)
    await blobs.delete(first.key)
    assert await _keys(blobs) == {second.key}
    assert await read_blob(blobs, second) == b"b"
    try:
        await read_blob(blobs, first)
    except StoreError:
        return
    raise AssertionError("deleted content was read")


async def lists_what_a_failed_upload_left(blobs: Blobs) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield bytes(SEGMENT_BYTES)
        yield b"x"
        raise ConnectionResetError("the client is gone")

    try:
        await blobs.put(chunks())
    except ConnectionResetError:
        pass
    else:
        raise AssertionError("an error of the chunks was not raised")
    for key in await _keys(blobs):
        await blobs.delete(key)
    assert await _keys(blobs) == set()


async def lists_what_a_cancelled_upload_left(blobs: Blobs) -> None:
    waits = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield bytes(SEGMENT_BYTES)
        yield b"x"
        waits.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(blobs.put(chunks()))
    await waits.wait()
    upload.cancel()
    assert isinstance((await asyncio.gather(upload, return_exceptions=True))[0], BaseException)
    keys = await _keys(blobs)
    assert len(keys) < 2
    for key in keys:  # a segment may still arrive later; the collector would delete it
        await blobs.delete(key)


CHECKS: Mapping[str, Check] = checks_of(globals(), "blobs")
