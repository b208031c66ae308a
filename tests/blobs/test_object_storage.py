"""Blobs in an S3 server and in a folder pass the contract checks, and survive damage."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import obstore
import pytest

from antiphon.blobs.object_storage import SEGMENT_BYTES, ObjectBlobs
from antiphon.errors import StoreError
from antiphon.testing.blob_check import CHECKS, read_blob
from tests.blobs.conftest import OpenBlobs, S3Server


async def chunks(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


@pytest.mark.parametrize("kind", ["s3", "folder", "encrypted"])
async def test_blobs_pass_the_checks(kind: str, open_kind: OpenBlobs) -> None:
    for check in CHECKS.values():
        blobs = open_kind("s3" if kind == "encrypted" else kind, encrypts=kind == "encrypted")
        await check(blobs)


async def test_damaged_content_is_not_sent_as_a_whole(open_kind: OpenBlobs) -> None:
    blobs = open_kind("folder")
    blob = await blobs.put(chunks(b"content"))
    await obstore.put_async(blobs.store, f"{blob.key}/000000", b"CONTENT")
    with pytest.raises(StoreError, match="damaged"):
        await read_blob(blobs, blob)
    await obstore.put_async(blobs.store, f"{blob.key}/000000", b"cont")
    with pytest.raises(StoreError, match="incomplete"):
        await read_blob(blobs, blob)


async def test_encrypted_content_is_neither_readable_nor_movable(open_kind: OpenBlobs) -> None:
    blobs = open_kind("s3", encrypts=True)
    first, second = [await blobs.put(chunks(text * 99)) for text in (b"secret", b"public")]
    sealed = await (await obstore.get_async(blobs.store, f"{first.key}/000000")).bytes_async()
    assert b"secret" not in bytes(sealed)
    await obstore.put_async(blobs.store, f"{second.key}/000000", bytes(sealed))
    with pytest.raises(StoreError, match="cannot be decrypted"):
        await read_blob(blobs, second)


async def test_encryption_is_switched_for_new_content_only(open_kind: OpenBlobs) -> None:
    before, after = open_kind("folder"), open_kind("folder", encrypts=True)
    plain, sealed = await before.put(chunks(b"plain")), await after.put(chunks(b"sealed"))
    for blobs in (before, after):
        assert [await read_blob(blobs, each) for each in (plain, sealed)] == [b"plain", b"sealed"]


async def test_no_upload_is_left_unfinished(s3: S3Server, open_kind: OpenBlobs) -> None:
    blobs = open_kind("s3")
    await CHECKS["lists_what_a_cancelled_upload_left"](blobs)
    await blobs.put(chunks(bytes(SEGMENT_BYTES + 1)))
    _, answer = s3.request("GET", f"/{blobs.store.config['bucket']}?uploads")
    assert b"<ListMultipartUploadsResult" in answer and b"<Upload>" not in answer


async def test_signed_url_downloads_one_segment(s3: S3Server, open_kind: OpenBlobs) -> None:
    blobs = open_kind("s3")
    small, large = [await blobs.put(chunks(bytes(n))) for n in (9, SEGMENT_BYTES + 1)]
    url = await blobs.sign(small, 60)
    assert url is not None and "X-Amz-Expires=60" in url
    assert s3.request("GET", url.removeprefix(s3.endpoint)) == (200, bytes(9))
    assert await blobs.sign(large, 60) is None
    assert await open_kind("s3", encrypts=True).sign(small, 60) is not None, "stored before"
    folder = open_kind("folder")
    assert await folder.sign(await folder.put(chunks(b"x")), 60) is None


async def test_error_of_the_storage_names_no_endpoint(open_kind: OpenBlobs) -> None:
    blobs = open_kind("s3")
    blob = await blobs.put(chunks(b"content"))
    await blobs.delete(blob.key)
    with pytest.raises(StoreError, match=r"^The stored content of a file is missing\.$"):
        await read_blob(blobs, blob)


async def test_unfinished_file_of_a_crash_is_removed(open_kind: OpenBlobs, tmp_path: Path) -> None:
    blobs: ObjectBlobs = open_kind("folder")
    blob = await blobs.put(chunks(b"content"))
    old, new = (tmp_path / "blobs" / blob.key / f"000001#{n}" for n in (1, 2))
    for each, modified_at in ((old, 1_000), (new, 3_000)):
        each.write_bytes(b"part")
        os.utime(each, (modified_at, modified_at))
    assert [each.key async for each in blobs.list()] == [blob.key]
    await blobs.remove_leftovers(2_000)
    assert (old.exists(), new.exists()) == (False, True)
    assert await read_blob(blobs, blob) == b"content"
