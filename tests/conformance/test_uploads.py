"""Files uploaded in parts, through the official client, over every store."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import openai
import pytest

from antiphon.http.app import create_app
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.limits.requests import RequestLimits
from antiphon.store.base import Retention, Store
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import NOW
from tests.conformance.test_files import _Log
from tests.http.conftest import counted

CONTENT = bytes(range(256)) * 40
NEW: dict[str, Any] = {"filename": "x/a.bin", "mime_type": "text/plain", "purpose": "user_data"}


@pytest.mark.requirement("FILE-UPLOADS")
async def test_official_client_uploads_in_parts(
    store: Store, serve: Serve, client_of: Clients, tmp_path: Path
) -> None:
    client = client_of(serve(on=store).app)
    path = tmp_path / "report.bin"
    path.write_bytes(CONTENT)
    async with asyncio.timeout(60):
        upload = await client.uploads.upload_file_chunked(
            file=path,
            mime_type="application/octet-stream",
            purpose="user_data",
            part_size=4000,
            md5=hashlib.md5(CONTENT).hexdigest(),
        )
        assert (upload.status, upload.bytes, upload.object) == ("completed", len(CONTENT), "upload")
        assert (upload.created_at, upload.expires_at) == (NOW, NOW + 3600)
        assert upload.file is not None and upload.file.filename == "report.bin"
        assert (await client.files.content(upload.file.id)).content == CONTENT
        assert [file.id async for file in client.files.list()] == [upload.file.id]


@pytest.mark.requirement("FILE-UPLOADS")
async def test_upload_continues_after_a_restart(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    before, after = client_of(serve(on=store).app), client_of(serve(on=store).app)
    async with asyncio.timeout(60):
        upload = await before.uploads.create(
            bytes=4, **NEW, expires_after={"anchor": "created_at", "seconds": 7200}
        )
        assert (upload.status, upload.file, upload.filename) == ("pending", None, "a.bin")
        parts = [
            await client.uploads.parts.create(upload.id, data=data)
            for client, data in ((before, b"cd"), (after, b"ab"))
        ]
        assert {part.object for part in parts} == {"upload.part"}
        assert {part.upload_id for part in parts} == {upload.id}
        ids = [parts[1].id, parts[0].id]
        done = await after.uploads.complete(upload.id, part_ids=ids)
        assert done.file is not None and done.file.expires_at == NOW + 7200
        assert (await before.files.content(done.file.id)).content == b"abcd"
        assert await before.uploads.complete(upload.id, part_ids=ids) == done, "a repetition"
        assert len([file async for file in before.files.list()]) == 1
        for again in (
            before.uploads.complete(upload.id, part_ids=ids[:1]),
            before.uploads.cancel(upload.id),
            before.uploads.parts.create(upload.id, data=b"e"),
        ):
            with pytest.raises(openai.BadRequestError, match="already completed"):
                await again


@pytest.mark.requirement("FILE-UPLOADS")
async def test_concurrent_completions_create_one_file(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    client = client_of(serve(on=store).app)
    async with asyncio.timeout(60):
        upload = await client.uploads.create(bytes=2, **NEW)
        part = await client.uploads.parts.create(upload.id, data=b"ab")
        outcomes = await asyncio.gather(
            *(client.uploads.complete(upload.id, part_ids=[part.id]) for _ in range(4)),
            return_exceptions=True,
        )
        files = {each.file.id for each in outcomes if not isinstance(each, BaseException)}
        assert len(files) == 1
        assert [file.id async for file in client.files.list()] == list(files)


@pytest.mark.requirement("FILE-UPLOADS")
async def test_cancelled_and_expired_uploads_end(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    server = serve(on=store)
    client = client_of(server.app)
    async with asyncio.timeout(60):
        cancelled, expired = [await client.uploads.create(bytes=2, **NEW) for _ in range(2)]
        part = await client.uploads.parts.create(cancelled.id, data=b"ab")
        await client.uploads.parts.create(expired.id, data=b"ab")
        assert (await client.uploads.cancel(cancelled.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="already cancelled"):
            await client.uploads.complete(cancelled.id, part_ids=[part.id])
        server.now = NOW + 3600
        with pytest.raises(openai.NotFoundError):
            await client.uploads.parts.create(expired.id, data=b"c")
        await store.sweep(Retention(), NOW + 3600)
        for owner in ("uploads", f"uploads\x1f{expired.id}", f"uploads\x1f{cancelled.id}"):
            for tenant in ("", "default"):
                name = f"{tenant}\x1f{owner}"
                assert await store.files.get(name, expired.id) is None
        assert [file async for file in client.files.list()] == []


def refusal(error: openai.APIStatusError) -> tuple[int, str | None, str | None]:
    """Return the status, the field and the code of a rejected request."""
    return error.status_code, error.param, error.code


@pytest.mark.requirement("FILE-UPLOAD-LIMITS")
async def test_upload_beyond_a_limit_is_rejected(
    store: Store, serve: Serve, client_of: Clients
) -> None:
    server = serve(on=store, quotas=TenantQuotas(Quotas(max_files_bytes=150)))
    app = create_app(
        server.service, limits=RequestLimits(max_file_bytes=100), ids=counted(), log=_Log()
    )
    client = client_of(app)
    async with asyncio.timeout(60):
        with pytest.raises(openai.APIStatusError) as large:
            await client.uploads.create(bytes=101, **NEW)
        assert refusal(large.value) == (413, "bytes", "file_too_large")
        upload = await client.uploads.create(bytes=100, **NEW)
        with pytest.raises(openai.APIStatusError) as full:
            await client.uploads.create(bytes=51, **NEW)
        assert refusal(full.value) == (429, "bytes", "insufficient_quota")
        first = await client.uploads.parts.create(upload.id, data=b"x" * 60)
        for data, code in ((b"y" * 41, "upload_size_exceeded"), (b"", "empty_file")):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.uploads.parts.create(upload.id, data=data)
            assert (refused.value.code, refused.value.param) == (code, "data")
        second = await client.uploads.parts.create(upload.id, data=b"y" * 40)
        ids = [first.id, second.id]
        for body, param, code in (
            ({"part_ids": ids[:1]}, "part_ids", "upload_size_mismatch"),
            ({"part_ids": ["part_0"]}, "part_ids[0]", "upload_part_not_found"),
            ({"part_ids": [first.id, first.id]}, "part_ids[1]", "invalid_value"),
            ({"part_ids": []}, "part_ids", "empty_array"),
            ({"part_ids": ids, "md5": "0" * 32}, "md5", "upload_checksum_mismatch"),
            ({"part_ids": ids, "md5": "x"}, "md5", "invalid_value"),
        ):
            with pytest.raises(openai.BadRequestError) as wrong:
                await client.uploads.complete(upload.id, **body)  # type: ignore[arg-type]
            assert refusal(wrong.value) == (400, param, code), body
        assert [file async for file in client.files.list()] == []
        await client.uploads.complete(upload.id, part_ids=ids)
        assert len([file async for file in client.files.list()]) == 1


@pytest.mark.requirement("FILE-UPLOAD-LIMITS")
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"bytes": None}, "bytes"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": "9"}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"mime_type": 1}, "mime_type"),
        ({"purpose": "CANARY"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
        ({"sizes": 1}, "sizes"),
    ],
)
async def test_invalid_upload_is_refused(serve: Serve, change: dict[str, Any], param: str) -> None:
    answer = await serve().client.post("/v1/uploads", json={"bytes": 1, **NEW, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
