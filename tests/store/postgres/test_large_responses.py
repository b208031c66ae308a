"""Large responses of a PostgreSQL store, in blobs outside of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.blobs.base import Blobs
from antiphon.blobs.collector import BlobCollector
from antiphon.blobs.locations import open_blobs
from antiphon.errors import StoreError
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.records import ConversationLock, RunEnd
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from antiphon.wire.resources.conversations import ConversationResource
from tests.real.postgres import Postgres
from tests.store.postgres.test_store import query_number

MIN_BYTES = 10_000
LARGE = "x" * MIN_BYTES


def blobs_in(folder: Path) -> Blobs:
    """Blobs in a folder."""
    folder.mkdir(exist_ok=True)
    numbers = iter(range(1000))
    return open_blobs(
        f"file://{folder}",
        {},
        root="root",
        encryptor=Encryptor([EncryptionKey.generate()]),
        encrypts=False,
        new_id=lambda: f"{next(numbers):032x}",
    )


async def keys(blobs: Blobs) -> set[str]:
    """The keys of all blobs."""
    return {blob.key async for blob in blobs.list()}


def rows(url: str) -> Any:
    """The number of responses whose contents are in blobs."""
    return query_number(url, "SELECT count(*) FROM antiphon.responses WHERE blob IS NOT NULL")


@pytest.fixture
async def url(database: Postgres) -> str:
    """An empty database."""
    return await database.create_migrated_database()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """Empty blobs."""
    return blobs_in(tmp_path / "blobs")


@pytest.fixture
async def store(url: str, blobs: Blobs) -> AsyncIterator[Store]:
    """A store that keeps large responses in the blobs."""
    opened = await open_store(url)
    opened.use_blobs(blobs, MIN_BYTES)
    yield opened
    await opened.close()


async def test_large_responses_are_read_from_blobs(url: str, store: Store, blobs: Blobs) -> None:
    turns = [
        make_response("a", text=LARGE),
        make_response("b", "a"),
        make_response("c", "b", text=LARGE),
    ]
    for each in turns:
        await store.save("t", each)
    assert await rows(url) == len(await keys(blobs)) == 2
    assert await store.load("t", "resp_a") == turns[0]
    assert await store.load_chain("t", "resp_c") == tuple(turns)
    item = turns[2].response.output[0]
    assert await store.load_item("t", item.id) == item
    assert (await store.usage("t")).responses_bytes > 2 * MIN_BYTES


async def test_runs_and_conversations_keep_large_responses_in_blobs(
    url: str, store: Store, blobs: Blobs
) -> None:
    claim = await begin_run(store)
    large = make_response("a", text=LARGE)
    assert await store.runs.end(claim, RunEnd(stored=large, batch=batch(2)))
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1))
    assert await store.runs.lock_conversation(
        "t", "resp_b", ConversationLock("conv_a", "o"), lease_s=60
    )
    lock = ConversationLock("conv_a", "o")
    assert await store.save("t", make_response("b", text=LARGE), lock=lock)
    assert await rows(url) == len(await keys(blobs)) == 2
    assert await store.load("t", "resp_a") == large


async def test_blobs_of_deleted_and_replaced_responses_are_collected(
    url: str, store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = store.clock

    async def two_days_later(now: float) -> float:
        return await clock(now) + 2 * 86_400

    monkeypatch.setattr(store, "clock", two_days_later)  # everything was uploaded long ago
    collector = BlobCollector(store, blobs, clock=lambda: 0.0, log=None)
    for name in "abcd":
        await store.save("t", make_response(name, text=LARGE))
    await store.save("t", make_response("a", text=LARGE + "y"))  # another blob
    await store.save("t", make_response("b"))  # none
    await store.delete("t", "resp_c")
    assert await collector.delete_unused() == 3
    assert await collector.delete_abandoned() == 0  # what has a response stays
    assert len(await keys(blobs)) == 2
    assert await store.load("t", "resp_a") == make_response("a", text=LARGE + "y")
    await store.sweep(Retention(max_responses=0), 10**9)
    assert await collector.delete_unused() == 2
    assert await keys(blobs) == set()


async def test_a_deleted_ancestor_keeps_its_blob(store: Store, blobs: Blobs) -> None:
    turns = (make_response("a", text=LARGE), make_response("b", "a"))
    for each in turns:
        await store.save("t", each)
    await store.delete("t", "resp_a")
    assert await store.load_chain("t", "resp_b") == turns
    await store.delete("t", "resp_b")
    assert len(await store.files.list_unused_blobs(9)) == 1


async def test_responses_stay_in_the_database_while_blobs_cannot_be_written(
    url: str, store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(chunks: object) -> None:
        raise StoreError("no")

    monkeypatch.setattr(blobs, "put", refuse)
    await store.save("t", make_response("a", text=LARGE))
    assert await rows(url) == 0
    assert await store.load("t", "resp_a") == make_response("a", text=LARGE)


async def test_blobs_are_moved(url: str, store: Store, blobs: Blobs, tmp_path: Path) -> None:
    for name in "abc":
        await store.save("t", make_response(name, text=LARGE))
    other = blobs_in(tmp_path / "other")
    assert await store.move_blobs(blobs, other) == 3
    assert await keys(blobs) == set() and len(await keys(other)) == 3
    with pytest.raises(StoreError):
        await store.load("t", "resp_a")
    store.use_blobs(other, 0)
    assert await store.load("t", "resp_a") == make_response("a", text=LARGE)
    await store.save("t", make_response("d", text=LARGE))  # 0: kept in the database
    assert await store.move_blobs(other, None) == 3
    assert await rows(url) == 0 and not await store.has_blobs()
    assert await store.load("t", "resp_b") == make_response("b", text=LARGE)


async def test_reading_without_blobs_is_an_error(url: str, store: Store) -> None:
    await store.save("t", make_response("a", text=LARGE))
    assert await store.has_blobs()
    other = await open_store(url)
    with pytest.raises(StoreError):
        await other.load("t", "resp_a")
    await other.close()


async def test_a_large_end_of_a_lost_run_leaves_no_row(store: Store, url: str) -> None:
    claim = await begin_run(store)
    await store.delete("t", "resp_a")
    assert not await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2)))
    assert await rows(url) == 0
