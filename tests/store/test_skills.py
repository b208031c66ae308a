"""Skills are kept in values, so no transaction covers a bundle and its version."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.skills import SkillStore
from antiphon.store.values import ValueStore
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.skills import make_draft

LATER = replace(make_draft("b"), created_at=make_draft("a").created_at + 4000)


class DyingValues(ValueStore):
    """Values of a process that dies after ``writes`` changes."""

    def __init__(self, values: ValueStore, writes: int) -> None:
        self._values = values
        self._writes = writes

    async def read(self, tenant: str, name: str) -> bytes | None:
        return await self._values.read(tenant, name)

    async def replace(self, tenant: str, name: str, old: bytes | None, new: bytes | None) -> bool:
        self._writes -= 1
        if self._writes < 0:
            raise StoreError("The process is dead.")
        return await self._values.replace(tenant, name, old, new)


@pytest.mark.parametrize("writes", [1, 2])
async def test_bundle_of_a_version_that_was_never_added_is_deleted(writes: int) -> None:
    store = MemoryStore()
    with pytest.raises(StoreError):
        await SkillStore(DyingValues(store.values, writes)).create("t", make_draft("a"), b"zip")
    assert await store.skills.list_skills("t") == ()

    await store.skills.create("t", LATER, b"zip")
    assert await store.values.read("t", "skill_bundle skillver_a1") is None
    assert await store.skills.read_bundle("t", "skill_b", 1) == b"zip"


async def test_bundle_of_a_version_that_is_being_added_is_kept() -> None:
    store = MemoryStore()
    with pytest.raises(StoreError):
        await SkillStore(DyingValues(store.values, 2)).create("t", make_draft("a"), b"zip")
    await store.skills.create("t", make_draft("b"), b"zip")
    assert await store.values.read("t", "skill_bundle skillver_a1") == b"zip"


@pytest.mark.parametrize("writes", [1, 2])
async def test_bundle_of_a_deleted_skill_is_deleted_later(writes: int) -> None:
    store = MemoryStore()
    await store.skills.create("t", make_draft("a"), b"zip")
    with pytest.raises(StoreError):
        await SkillStore(DyingValues(store.values, writes)).delete("t", "skill_a")
    assert await store.skills.get("t", "skill_a") is None
    await store.skills.create("t", LATER, b"zip")
    assert await store.values.read("t", "skill_bundle skillver_a1") is None
