"""Nearest vectors by Qdrant are those that comparing all vectors finds."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from antiphon.errors import SetupError, StoreError
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.postgres.vectors import qdrant, qdrant_client
from antiphon.testing.postgres import Postgres
from antiphon.testing.vector_check import CHECKS, make_vector_store

from .nearest_vectors import add_file, compare

if TYPE_CHECKING:
    from .fake_qdrant import FakeQdrant

KEY = "k-1"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeQdrant]:
    """A server in which more than 100 points are many."""
    from .fake_qdrant import fake_qdrant  # here: Qdrant's client takes seconds to import

    monkeypatch.setattr(qdrant_client, "EXACT_POINTS", 100)
    async with fake_qdrant(key=KEY) as running:
        yield running


@pytest.fixture
async def url(database: Postgres) -> str:
    return await database.create_migrated_database()


@pytest.fixture
async def store(url: str, server: FakeQdrant) -> AsyncIterator[Store]:
    """A store as behind a pooler: no session is ours."""
    opened = await open_store(url, vectors=server.url, vectors_key=KEY, listen_url=url)
    yield opened
    await opened.close()


async def test_store_with_qdrant_passes_the_checks(database: Postgres, server: FakeQdrant) -> None:
    for check in CHECKS.values():
        opened = await open_store(
            await database.create_migrated_database(), vectors=server.url, vectors_key=KEY
        )
        try:
            await check(opened)
        finally:
            await opened.close()
        database.give_back()


async def test_small_parts_are_exact_and_large_ones_use_the_index(
    store: Store, server: FakeQdrant
) -> None:
    chance = random.Random(1)
    for name in "ab":
        await store.vectors.put("t", make_vector_store(name))
    assert await compare(store, None) == 0
    await add_file(store, "0", chance)
    assert await compare(store, None) == 10
    assert server.searches()[-1]["params"] == {"exact": True}
    for n in range(1, 8):
        await add_file(store, str(n), chance)
    await add_file(store, "0", chance, vector_store="b")
    assert await compare(store, None) == 10
    assert server.searches()[-1]["params"] == {"exact": False, "hnsw_ef": 256}
    assert await compare(store, ["file-3"], limit=30) == 20
    assert server.searches()[-1]["params"] == {"exact": True}
    assert await compare(store, [f"file-{n}" for n in range(7)]) == 10
    assert server.searches()[-1]["params"] == {"exact": False, "hnsw_ef": 1024}
    assert await compare(store, ["file-unknown"]) == 0
    assert await store.vectors.search_vectors("u", "vs_a", "m", bytes(64), None, 9) == ()
    assert await store.vectors.search_vectors("t", "vs_a", "other", bytes(64), None, 9) == ()


async def test_collections_have_an_index_of_each_vector_store(
    store: Store, server: FakeQdrant
) -> None:
    await store.vectors.put("t", make_vector_store("a"))
    await add_file(store, "0", random.Random(1))
    ((name, indexes),) = server.indexes.items()
    assert name.startswith("antiphon-") and name.endswith("-16")
    assert indexes["tenant"] == {"type": "keyword", "is_tenant": True}
    assert indexes.keys() == {"tenant", "store", "file"}
    (created,) = [body for _, body in server.requests if "hnsw_config" in body]
    assert created["hnsw_config"] == {"m": 0, "payload_m": 16}
    (point,) = (await server.local.scroll(name, limit=1))[0]
    assert point.payload is not None
    assert (point.payload["tenant"], point.payload["store"]) == ("t", "vs_a")


async def test_chunks_of_removed_files_are_not_found(store: Store, server: FakeQdrant) -> None:
    chance = random.Random(2)
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(4):
        await add_file(store, str(n), chance)
    assert await store.vectors.remove_file("t", "vs_a", "file-1")
    assert await compare(store, None, limit=99) == 60
    await add_file(store, "3", chance, chunks=5)
    assert await compare(store, ["file-1", "file-3"], limit=30) == 5
    assert await store.vectors.delete("t", "vs_a")
    await store.vectors.put("t", make_vector_store("b"))
    await add_file(store, "0", chance, vector_store="b")
    (name,) = server.indexes
    assert (await server.local.count(name)).count == 20, "of the deleted vector store, none"


async def test_deletions_count_before_qdrant_applies_them(
    store: Store, server: FakeQdrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    await store.vectors.put("t", make_vector_store("a"))
    for n in range(3):
        await add_file(store, str(n), chance)

    async def apply_nothing(self: object, store: int | None) -> int:
        return 0

    with monkeypatch.context() as patched:  # another process applies them, and is slow
        patched.setattr(qdrant.Qdrant, "_apply_some", apply_nothing)
        await store.vectors.remove_file("t", "vs_a", "file-1")
        assert await compare(store, None, limit=40) == 40
    assert await compare(store, None, limit=99) == 40


async def test_changes_wait_for_a_server_that_is_down(store: Store, server: FakeQdrant) -> None:
    chance = random.Random(4)
    await store.vectors.put("t", make_vector_store("a"))
    await add_file(store, "0", chance)
    server.is_down = True
    await add_file(store, "1", chance)
    await store.vectors.remove_file("t", "vs_a", "file-0")
    with pytest.raises(StoreError, match="The vector database does not answer"):
        await store.vectors.search_vectors("t", "vs_a", "m", bytes(64), None, 9)
    with pytest.raises(StoreError):
        await store.vectors.check()
    await store.check_writable()
    server.is_down = False
    await store.vectors.check()
    assert await compare(store, None, limit=99) == 20


async def test_vectors_that_qdrant_lacks_are_copied(url: str, server: FakeQdrant) -> None:
    chance = random.Random(5)
    plain = await open_store(url)
    await plain.vectors.put("t", make_vector_store("a"))
    for n in range(3):
        await add_file(plain, str(n), chance)
    await plain.close()
    for lost in (False, True):
        if lost:
            (name,) = server.indexes
            await server.local.delete_collection(name)
        opened = await open_store(url, vectors=server.url, vectors_key=KEY)
        assert await compare(opened, None, limit=99) == 60
        await opened.close()
    plain = await open_store(url)
    await plain.vectors.remove_file("t", "vs_a", "file-0")
    await add_file(plain, "1", chance, chunks=3)
    await plain.close()
    opened = await open_store(url, vectors=server.url, vectors_key=KEY)
    assert await compare(opened, None, limit=99) == 23
    await opened.close()


async def test_file_that_is_deleted_while_its_vectors_are_sent(
    store: Store, server: FakeQdrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.vectors.put("t", make_vector_store("a"))
    await add_file(store, "0", random.Random(6))
    send = qdrant_client.QdrantClient.add

    async def send_and_delete(self: qdrant_client.QdrantClient, *arguments: object) -> None:
        await send(self, *arguments)  # type: ignore[arg-type]
        assert await store.vectors.remove_file("t", "vs_a", "file-1")

    with monkeypatch.context() as patched:
        patched.setattr(qdrant_client.QdrantClient, "add", send_and_delete)
        await add_file(store, "1", random.Random(7))
    (name,) = server.indexes
    assert (await server.local.count(name)).count == 20
    assert await compare(store, None, limit=99) == 20


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ("qdrant://127.0.0.1:1", r"Qdrant at http://127\.0\.0\.1:1 cannot be used"),
        ("qdrant://key@127.0.0.1", "use qdrant://HOST:PORT, and vectors_key"),
        ("qdrant://127.0.0.1:port", "use qdrant://HOST:PORT, and vectors_key"),
        ("faiss", 'use "exact", "pgvector" or qdrant://HOST:PORT'),
    ],
)
async def test_settings_that_cannot_work(url: str, vectors: str, message: str) -> None:
    with pytest.raises(SetupError, match=f"^vectors: {message}"):
        await open_store(url, vectors=vectors)


async def test_wrong_key_is_an_error_at_start(url: str, server: FakeQdrant) -> None:
    with pytest.raises(SetupError, match="401") as refused:
        await open_store(url, vectors=server.url, vectors_key="secret")
    assert "secret" not in str(refused.value)


async def test_qdrant_needs_postgresql() -> None:
    with pytest.raises(SetupError, match='vectors: "qdrant" needs a store postgresql://'):
        await open_store("memory:", vectors="qdrant://127.0.0.1")


async def test_missing_client_is_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(SetupError, match="vectors: the client of Qdrant is not installed"):
        await open_store(url, vectors="qdrant://127.0.0.1")
