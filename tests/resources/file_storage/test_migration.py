"""Contents move between the store and blobs, in every direction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon.blobs.locations import open_blobs
from antiphon.blobs.object_storage import ObjectBlobs
from antiphon.cli.main import main
from antiphon.resources.file_storage.files import MAX_WHOLE_BYTES
from antiphon.resources.file_storage.migration import migrate_contents
from antiphon.resources.file_storage.uploads import RECORD_PURPOSE
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.files import BlobRef
from antiphon.testing.blob_check import read_blob
from antiphon.testing.store_checks.files import make_file


def folder_blobs(folder: Path) -> ObjectBlobs:
    names = iter(f"blob{n}" for n in range(99))
    return open_blobs(
        f"file://{folder}",
        {},
        root=folder.name,
        encryptor=Encryptor([EncryptionKey.generate()]),
        encrypts=False,
        new_id=lambda: next(names),
    )


async def problems(
    store: Store, source: ObjectBlobs | None, target: ObjectBlobs | None
) -> list[str]:
    """Migrate, and return the ids of the files that did not move."""
    moves = migrate_contents(store.files, source, target)
    return [each.file_id async for each in moves if each.problem is not None]


async def keys(blobs: ObjectBlobs) -> set[str]:
    return {each.key async for each in blobs.list()}


async def test_contents_move_out_between_and_back(store: Store, tmp_path: Path) -> None:
    first, second = folder_blobs(tmp_path / "first"), folder_blobs(tmp_path / "second")
    texts = {"a": b"same", "b": b"same", "c": b"other"}
    for name, text in texts.items():
        assert await store.files.put("t", make_file(name, text), text)
    record = make_file("record", b"{}", purpose=RECORD_PURPOSE)
    assert await store.files.put("t", record, b"{}")
    assert await problems(store, None, first) == []
    found = {name: await store.files.read("t", f"file-{name}") for name in texts}
    for name, text in texts.items():
        blob = found[name]
        assert isinstance(blob, BlobRef) and await read_blob(first, blob) == text
    assert len(await keys(first)) == 2, "equal contents share a blob"
    assert await store.files.read("t", "file-record") == b"{}"
    assert await problems(store, first, second) == []
    assert (len(await keys(first)), len(await keys(second))) == (0, 2)
    assert await problems(store, second, None) == []
    assert {name: await store.files.read("t", f"file-{name}") for name in texts} == texts
    assert await keys(second) == set()


async def test_content_that_cannot_move_stays(store: Store, tmp_path: Path) -> None:
    blobs = folder_blobs(tmp_path / "first")
    missing = BlobRef(key="first/missing", sha256="0" * 64, bytes=1)
    huge = BlobRef(key="first/huge", sha256="1" * 64, bytes=MAX_WHOLE_BYTES + 1)
    await store.files.put("t", make_file("a"), missing)
    await store.files.put("t", make_file("b", bytes(0)), huge)
    assert await problems(store, blobs, None) == ["file-a", "file-b"]
    assert await store.files.read("t", "file-a") == missing


def test_command_migrates_and_collects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place, store = f"file://{tmp_path}/blobs", f"sqlite:{tmp_path}/a.db"
    (tmp_path / "antiphon.toml").write_text(f'store = "{store}"\nfiles = "{place}"\n')

    async def prepare() -> None:
        opened = await open_store(store)
        await opened.files.put("t", make_file("a", b"text"), b"text")
        await opened.close()

    asyncio.run(prepare())
    assert main(["files", "migrate"]) == 0
    assert f"1 contents moved, 4 bytes, from store to {place}" in capsys.readouterr().out
    assert [path.read_bytes() for path in (tmp_path / "blobs").rglob("000000")] == [b"text"]
    assert main(["files", "collect"]) == 0
    assert "0 unused and 0 abandoned contents deleted" in capsys.readouterr().out
    assert main(["files", "migrate", "--from", place]) == 2
    assert "name another source" in capsys.readouterr().err
    assert main(["files", "migrate", "--files", "store", "--from", place]) == 0
    assert list((tmp_path / "blobs").rglob("000000")) == []
    assert main(["files", "collect", "--files", "store"]) == 2
