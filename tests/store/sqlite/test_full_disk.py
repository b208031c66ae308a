"""A full disk: saving fails with its cause, and deleting makes space. A disk that fails: saving
fails with its cause, and what is stored can be read."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.errors import StoreError
from antiphon.store.records import StoredResponse
from antiphon.store.sqlite.store import SqliteStore
from antiphon.wire.items import Message
from antiphon.wire.response import Response
from tests.chaos.read_only import failing_disk

pytestmark = pytest.mark.e2e


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 6 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def stored(number: int, words: int = 20_000) -> StoredResponse:
    text = {"type": "output_text", "text": f"{number} " * words}
    message = Message(id=f"msg_{number}", role="assistant", content=(text,))
    response = Response(id=f"resp_{number}", created_at=number, model="m", output=(message,))
    return StoredResponse(response=response, input=())


@pytest.mark.parametrize("words", [5_000, 20_000, 60_000])
async def test_full_disk_is_named_and_deleting_makes_space(small_disk: Path, words: int) -> None:
    store = await SqliteStore.open(small_disk / "responses.db")
    async with asyncio.timeout(60):
        await fill_and_free(store, words)
    await store.close()


async def fill_and_free(store: SqliteStore, words: int) -> None:
    saved = 0
    with pytest.raises(StoreError, match="the disk is full"):
        for number in range(1_000):
            await store.save("a", stored(number, words))
            saved += 1
    assert saved > 1
    for number in range(saved):
        assert await store.delete("a", f"resp_{number}")
    await store.save("a", stored(2_000, words))
    assert await store.load("a", "resp_2000") is not None


async def test_read_only_disk_is_named_and_can_be_read(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this user cannot mount a file system")
        store = await SqliteStore.open(disk.folder / "responses.db")
        await store.save("a", stored(1))
        assert disk.fail()
        async with asyncio.timeout(60):
            with pytest.raises(StoreError, match="the file system is read-only"):
                await store.save("a", stored(2))
            assert await store.load("a", "resp_1") is not None
            await store.close()
