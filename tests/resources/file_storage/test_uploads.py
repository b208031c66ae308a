"""Uploads in parts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator

import pytest

from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.resources.file_storage.files import Files
from antiphon.resources.file_storage.uploads import ChunkedUploads
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.parsing.uploads import CompleteUpload, CreateUpload
from antiphon.wire.resources.files import ChunkedUpload

CONTENT = b"abcdef"


async def _content() -> AsyncGenerator[bytes, None]:
    yield CONTENT


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_pending_upload_can_be_ended_after_its_quota_was_lowered(status: str) -> None:
    """Together, the other pending uploads of the tenant are larger than the new quota."""
    numbers = itertools.count()
    quotas, store = TenantQuotas(Quotas(max_files_bytes=100)), MemoryStore()

    def make_id(prefix: str) -> str:
        return f"{prefix}_{next(numbers)}"

    files = Files(store, clock=lambda: 0.0, ids=make_id, quotas=quotas)
    uploads = ChunkedUploads(store, files, clock=lambda: 0.0, ids=make_id, quotas=quotas)

    async def create() -> ChunkedUpload:
        request = CreateUpload(
            bytes=len(CONTENT), filename="a", purpose="user_data", mime_type="text/plain"
        )
        return await uploads.create("t", request, max_file_bytes=99)

    upload, *_ = [await create() for _ in range(3)]
    part = await uploads.add_part("t", upload.id, len(CONTENT), _content())
    quotas.update(TenantQuotas(Quotas(max_files_bytes=10)))
    complete = CompleteUpload(part_ids=(part.id,))
    if status == "cancelled":
        ended = await uploads.cancel("t", upload.id)
    else:
        ended = await uploads.complete("t", upload.id, complete)
        assert await uploads.complete("t", upload.id, complete) == ended
    assert ended.status == status
    assert await uploads.pending_bytes("t") == 2 * len(CONTENT)
