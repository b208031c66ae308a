"""Collections: objects of tenants in values of the store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.store.values import Collection
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.cursors import PageParams


class Note(Struct):
    id: str
    changes: int = 0


@pytest.fixture
def notes() -> Collection[Note]:
    return Collection(MemoryStore().values, "note", Note)


async def texts(notes: Collection[Note], tenant: str = "t", **params: object) -> list[str]:
    found, _ = await notes.page(tenant, PageParams(**params))  # type: ignore[arg-type]
    return [note.id for note in found]


async def test_objects_are_listed_in_pages_and_deleted(notes: Collection[Note]) -> None:
    for id in ("n_1", "n_2", "m_1", "n_3"):
        await notes.add("t", id, Note(id))
    assert await texts(notes) == ["n_3", "m_1", "n_2", "n_1"]
    assert await texts(notes, "u") == [] and await notes.load("u", "n_1") is None
    page, has_more = await notes.page("t", PageParams(limit=2), prefix="n_")
    assert [note.id for note in page] == ["n_3", "n_2"] and has_more
    assert await texts(notes, after="m_1", order="asc") == ["n_3"]
    await notes.delete("t", "n_3")
    await notes.delete("t", "n_3")
    assert await notes.ids("t") == ("n_1", "n_2", "m_1")
    with pytest.raises(InvalidRequest):
        await notes.page("t", PageParams(after="n_3"))


async def test_concurrent_changes_all_take_effect(notes: Collection[Note]) -> None:
    await notes.add("t", "n", Note("n"))

    def count(note: Note) -> int:
        note.changes += 1
        return note.changes

    results = await asyncio.gather(*(notes.update("t", "n", count) for _ in range(5)))
    assert sorted(map(int, filter(None, results))) == [1, 2, 3, 4, 5]
    assert await notes.update("t", "other", count) is None
