"""A full disk: saving fails with its cause, and deleting makes space. A disk that fails: saving
fails with its cause, and what is stored can be read."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import structlog

from antiphon.errors import StoreError
from antiphon.store.base import Retention
from antiphon.store.records import StoredResponse
from antiphon.store.sqlite.store import SqliteStore
from antiphon.store.upkeep.sweeper import Sweeper
from antiphon.testing.store_checks.files import make_file
from antiphon.wire.items import InputText, Message
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.resources.vector_stores import VectorStore
from antiphon.wire.response import Response
from tests.chaos.disk import Disk
from tests.chaos.read_only import failing_disk

pytestmark = pytest.mark.e2e

DAY = 86_400


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


async def test_everything_can_be_deleted_from_a_full_disk(small_disk: Path) -> None:
    store = await SqliteStore.open(small_disk / "responses.db")
    await prepare(store)
    with pytest.raises(StoreError, match="the disk is full"):
        for number in range(1_000):
            await store.save("a", stored(number))
    for name, delete in DELETIONS.items():
        assert await delete(store), name
    await store.delete_tenant("a")
    await store.save("a", stored(2_000))
    await store.close()


TEXT = "x" * 50_000
ITEMS = tuple(
    Message(id=f"msg_i{number}", role="user", content=(InputText(text=TEXT),)) for number in "ab"
)


async def prepare(store: SqliteStore) -> None:
    """Store one object of each kind."""
    await store.save_conversation("a", ConversationResource(id="conv_a", created_at=1), ITEMS)
    await store.files.put("a", make_file("a", TEXT.encode()), TEXT.encode())
    await store.vectors.put("a", VectorStore(id="vs_a", created_at=1))
    await store.values.replace("a", "value", None, TEXT.encode())
    await store.values.replace("a", "list", None, b'["a","b"]')


#: What deletes an object of each kind, and returns whether it was there.
DELETIONS: dict[str, Callable[[SqliteStore], Awaitable[bool]]] = {
    "item": lambda store: store.remove_conversation_item("a", "conv_a", "msg_ia"),
    "conversation": lambda store: store.delete_conversation("a", "conv_a"),
    "file": lambda store: store.files.delete("a", "file-a"),
    "vector store": lambda store: store.vectors.delete("a", "vs_a"),
    "entry of a list": lambda store: store.values.replace("a", "list", b'["a","b"]', b'["a"]'),
    "value": lambda store: store.values.replace("a", "value", TEXT.encode(), None),
}


async def fill(store: SqliteStore, disk: Path, words: int) -> int:
    """Save responses until the disk is full, and use up what is left of it. Return their number."""
    saved = 0
    with pytest.raises(StoreError, match="the disk is full"):
        while True:
            await store.save("a", stored(saved, words))
            saved += 1
    Disk(disk).fill()
    return saved


@pytest.mark.parametrize("words", [50, 5_000, 200_000])
@pytest.mark.parametrize(
    ("retention", "left"),
    [(Retention(max_age_s=DAY), 0), (Retention(max_responses=2), 2)],
    ids=["age", "number"],
)
async def test_retention_makes_space_on_a_full_disk(
    small_disk: Path, words: int, retention: Retention, left: int
) -> None:
    store = await SqliteStore.open(small_disk / "responses.db")
    saved = await fill(store, small_disk, words)
    read_clock = partial(store.clock, 100 * DAY)
    async with asyncio.timeout(60):
        sweeper = Sweeper(store, retention, read_clock=read_clock, log=structlog.get_logger())
        assert await sweeper.sweep() == saved - left
    await store.save("a", stored(2_000, words))
    await store.close()


async def test_restart_on_a_full_disk_can_delete_what_is_larger_than_the_reserve(
    small_disk: Path,
) -> None:
    store = await SqliteStore.open(small_disk / "responses.db")
    content = b"x" * (2 << 20)
    await store.files.put("a", make_file("a", content), content)
    await fill(store, small_disk, 500)
    await store.close()
    store = await SqliteStore.open(small_disk / "responses.db")
    assert await store.files.delete("a", "file-a")
    for number in range(100):
        await store.save("b", stored(number, 500))
    await store.close()


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
