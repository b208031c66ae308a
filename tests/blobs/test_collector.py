"""Contents without files are deleted; contents with files never are."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import structlog

from antiphon.blobs.collector import BlobCollector
from antiphon.store.base import Retention, Store
from antiphon.testing.blob_check import read_blob
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.files import make_file
from tests.blobs.conftest import OpenBlobs


async def chunks(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


async def test_content_of_deleted_and_expired_files_is_deleted(
    store: Store, open_kind: OpenBlobs
) -> None:
    blobs = open_kind("folder")
    deleted, expired, shared = [await blobs.put(chunks(text)) for text in (b"a", b"b", b"c")]
    await store.files.put("t", make_file("a"), deleted)
    await store.files.put("t", make_file("b", expires_at=1_500), expired)
    await store.files.put("t", make_file("c"), shared)
    await store.files.put("t", make_file("d"), await blobs.put(chunks(b"c")))
    assert await store.files.delete("t", "file-a") and await store.files.delete("t", "file-c")
    await store.sweep(Retention(), 2_000)
    collector = BlobCollector(store, blobs, clock=lambda: 2_000, log=structlog.get_logger())
    assert await collector.delete_unused() == 3, "with the second upload of the same content"
    assert [each.key async for each in blobs.list()] == [shared.key]
    assert await read_blob(blobs, shared) == b"c"
    assert await collector.delete_unused() == 0


async def test_abandoned_upload_is_deleted_after_a_day(open_kind: OpenBlobs) -> None:
    store, now = MemoryStore(), [0.0]
    blobs = open_kind("folder")
    owned, abandoned = [await blobs.put(chunks(text)) for text in (b"a", b"b")]
    await store.files.put("t", make_file("a"), owned)
    collector = BlobCollector(store, blobs, clock=lambda: now[0], log=structlog.get_logger())
    (modified_at, *_) = [each.modified_at async for each in blobs.list()]
    now[0] = modified_at + 86_000
    assert await collector.delete_abandoned() == 0, "may still become a file"
    now[0] = modified_at + 87_000
    assert await collector.delete_abandoned() == 1
    assert [each.key async for each in blobs.list()] == [owned.key] != [abandoned.key]


async def test_wrong_clock_of_a_server_deletes_no_upload(open_kind: OpenBlobs) -> None:
    class StoreWithClock(MemoryStore):
        async def clock(self, now: float) -> float:
            return time.time()

    blobs = open_kind("folder")
    await blobs.put(chunks(b"a"))
    collector = BlobCollector(
        StoreWithClock(), blobs, clock=lambda: 4e9, log=structlog.get_logger()
    )
    assert await collector.delete_abandoned() == 0
