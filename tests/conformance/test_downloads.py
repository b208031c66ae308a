"""Downloads with ranges, and files whose contents are outside of the store."""

from __future__ import annotations

import base64
import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.blobs.locations import open_blobs
from antiphon.blobs.object_storage import SEGMENT_BYTES, ObjectBlobs
from antiphon.http.download import requested_range
from antiphon.resources.file_storage.files import MAX_WHOLE_BYTES
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.store.files import BlobRef
from antiphon.testing.store_checks.files import make_file
from tests.conformance.conftest import Serve
from tests.conformance.server import Server

CONTENT = hashlib.shake_256(b"content").digest(SEGMENT_BYTES + 5_000)


@pytest.fixture
def blobs(tmp_path: Path) -> ObjectBlobs:
    numbers = itertools.count()
    return open_blobs(
        f"file://{tmp_path}/blobs",
        {},
        root="store",
        encryptor=Encryptor([EncryptionKey.generate()]),
        encrypts=True,
        new_id=lambda: f"blob{next(numbers)}",
    )


async def uploaded(server: Server, content: bytes = CONTENT, name: str = "a.txt") -> str:
    answer = await server.client.post(
        "/v1/files", data={"purpose": "user_data"}, files={"file": (name, content)}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == len(content)
    return str(answer.json()["id"])


async def downloaded(server: Server, file_id: str, **headers: str) -> Any:
    path = f"/v1/files/{file_id}/content"
    return await server.client.get(
        path, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


@pytest.mark.parametrize("place", ["store", "blobs"])
@pytest.mark.requirement("FILE-RANGES")
async def test_range_of_a_file_is_downloaded(place: str, serve: Serve, blobs: ObjectBlobs) -> None:
    server = serve(blobs=blobs if place == "blobs" else None)
    file_id = await uploaded(server)
    whole = await downloaded(server, file_id)
    assert whole.content == CONTENT and whole.status_code == 200
    assert whole.headers["accept-ranges"] == "bytes"
    if place == "blobs":
        digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
        assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"
    part = await downloaded(server, file_id, range=f"bytes={SEGMENT_BYTES - 2}-{SEGMENT_BYTES + 1}")
    assert (part.status_code, part.content) == (206, CONTENT[SEGMENT_BYTES - 2 : SEGMENT_BYTES + 2])
    assert part.headers["content-range"] == (
        f"bytes {SEGMENT_BYTES - 2}-{SEGMENT_BYTES + 1}/{len(CONTENT)}"
    )
    assert (await downloaded(server, file_id, range="bytes=-3")).content == CONTENT[-3:]
    etag = whole.headers["etag"]
    assert (await downloaded(server, file_id, range="bytes=0-0", if_range=etag)).status_code == 206
    changed = await downloaded(server, file_id, range="bytes=0-0", if_range='"other"')
    assert (changed.status_code, changed.content) == (200, CONTENT)
    behind = await downloaded(server, file_id, range=f"bytes={len(CONTENT)}-")
    assert (behind.status_code, behind.json()["error"]["code"]) == (416, "range_not_satisfiable")
    assert behind.headers["content-range"] == f"bytes */{len(CONTENT)}"
    head = await server.client.head(f"/v1/files/{file_id}/content")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(CONTENT)))
    empty = await downloaded(server, await uploaded(server, b""))
    assert (empty.status_code, empty.content) == (200, b"")


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        ("bytes=0-4", 10, (0, 5)),
        ("bytes=4-", 10, (4, 10)),
        ("BYTES=-4", 10, (6, 10)),
        ("bytes=-40", 10, (0, 10)),
        ("bytes=8-99", 10, (8, 10)),
        ("bytes=10-", 10, (10, 10)),
        ("bytes=-0", 10, (10, 10)),
        ("bytes=0-", 0, (0, 0)),
        ("bytes=5-4", 10, None),
        ("bytes=-", 10, None),
        ("bytes=0-1,3-4", 10, None),
        ("items=0-1", 10, None),
        ("bytes=٣-٤", 10, None),
        ("", 10, None),
    ],
)
@pytest.mark.requirement("FILE-RANGES")
def test_range_header_is_read_or_ignored(
    header: str, size: int, expected: tuple[int, int] | None
) -> None:
    assert requested_range(header, size) == expected


@pytest.mark.requirement("FILE-BLOBS")
async def test_content_outside_of_the_store_serves_every_use(
    store: Store, serve: Serve, blobs: ObjectBlobs
) -> None:
    server = serve("It says hello.", on=store, blobs=blobs)
    file_id = await uploaded(server, b"Hello from a file", name="a.txt")
    found = await store.files.read("default", file_id)
    assert isinstance(found, BlobRef) and found.bytes == 17
    part = {"type": "input_file", "file_id": file_id}
    body = {"model": "tiny", "input": [{"role": "user", "content": [part]}]}
    answer = await server.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    upload = (
        await server.client.post(
            "/v1/uploads",
            json={
                "bytes": 6,
                "filename": "b.txt",
                "mime_type": "text/plain",
                "purpose": "user_data",
            },
        )
    ).json()
    ids = []
    for piece in (b"abc", b"def"):
        added = await server.client.post(
            f"/v1/uploads/{upload['id']}/parts", files={"data": ("p", piece)}
        )
        ids.append(added.json()["id"])
    done = await server.client.post(
        f"/v1/uploads/{upload['id']}/complete",
        json={"part_ids": ids, "md5": hashlib.md5(b"abcdef").hexdigest()},
    )
    assert done.status_code == 200, done.text
    joined = done.json()["file"]["id"]
    assert (await downloaded(server, joined)).content == b"abcdef"
    for each in (file_id, joined):
        assert (await server.client.delete(f"/v1/files/{each}")).status_code == 200
    assert len(await store.files.list_unused_blobs(10)) == 4


@pytest.mark.requirement("FILE-BLOBS")
async def test_missing_and_huge_contents_are_reported(
    serve: Serve, blobs: ObjectBlobs, store: Store
) -> None:
    server = serve(on=store, blobs=blobs)
    file_id = await uploaded(server, b"content")
    found = await store.files.read("default", file_id)
    assert isinstance(found, BlobRef)
    await blobs.delete(found.key)
    answer = await downloaded(server, file_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_is_overloaded")
    huge = replace(make_file("huge"), bytes=MAX_WHOLE_BYTES + 1)
    await store.files.put("default", huge, replace(found, bytes=huge.bytes))
    part = {"type": "input_file", "file_id": huge.id}
    body = {"model": "tiny", "input": [{"role": "user", "content": [part]}]}
    refused = await server.client.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_too_large")
    assert refused.json()["error"]["param"] == "input[0].content[0].file_id"


@pytest.mark.requirement("FILE-BLOBS")
async def test_download_is_redirected_to_a_signed_url_if_there_is_one(
    serve: Serve, blobs: ObjectBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(blobs=blobs, files_signed_url_s=60)
    file_id = await uploaded(server, b"content")
    assert (await downloaded(server, file_id)).content == b"content", "a folder has no URLs"

    async def sign(blob: BlobRef, lifetime_s: float) -> str:
        return f"https://storage.test/{blob.bytes}?for={lifetime_s}"

    monkeypatch.setattr(blobs, "sign", sign)
    answer = await downloaded(server, file_id)
    assert answer.status_code == 307
    assert answer.headers["location"] == "https://storage.test/7?for=60"
