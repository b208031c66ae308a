"""Checks that a store fulfils its contract for skills."""

from __future__ import annotations

import asyncio

from antiphon.store.base import Retention, Store
from antiphon.store.skills import SkillDraft


def make_draft(name: str, number: int = 1) -> SkillDraft:
    """Return a draft (a new version that has no version number yet) of the skill ``skill_NAME``.
    ``number`` is a part of the draft's id and name."""
    return SkillDraft(
        id=f"skillver_{name}{number}",
        skill_id=f"skill_{name}",
        created_at=1_000 + number,
        name=f"{name}-{number}",
        description='What it is for: "\u0000" too.',
    )


async def _store_skills(store: Store, *names: str, tenant: str = "t") -> None:
    for name in names:
        assert await store.skills.create(tenant, make_draft(name), b"zip")


async def stores_skills_with_bundles(store: Store) -> None:
    content = bytes(range(256)) * 2_000
    assert await store.skills.create("t", make_draft("a"), content)
    found = await store.skills.get("t", "skill_a")
    assert found is not None
    assert (found.name, found.default_version, found.latest_version) == ("a-1", "1", "1")
    assert (found.created_at, found.description) == (1_001, make_draft("a").description)
    assert await store.skills.list_versions("t", "skill_a") == (make_draft("a").to_version(1),)
    assert await store.skills.read_bundle("t", "skill_a", 1) == content
    assert await store.skills.read_bundle("t", "skill_a", 2) is None
    assert await store.skills.get("t", "skill_b") is None


async def isolates_skills_by_tenant(store: Store) -> None:
    await _store_skills(store, "a")
    skills = store.skills
    assert await skills.get("u", "skill_a") is None and await skills.list_skills("u") == ()
    assert await skills.list_versions("u", "skill_a") == ()
    assert await skills.read_bundle("u", "skill_a", 1) is None
    assert await skills.add_version("u", make_draft("a", 2), b"", default=True) is None
    assert not await skills.set_default_version("u", "skill_a", 1)
    assert not await skills.delete_version("u", "skill_a", 1)
    assert not await skills.delete("u", "skill_a")
    await _store_skills(store, "a", tenant="u")
    assert await skills.delete("u", "skill_a")
    assert await skills.get("t", "skill_a") is not None


async def lists_skills_in_creation_order(store: Store) -> None:
    await _store_skills(store, "b", "a", "c")
    assert [skill.id for skill in await store.skills.list_skills("t")] == [
        "skill_b",
        "skill_a",
        "skill_c",
    ]


async def numbers_the_versions_of_a_skill(store: Store) -> None:
    await _store_skills(store, "a", "b")
    second = await store.skills.add_version("t", make_draft("a", 2), b"two", default=False)
    assert second == make_draft("a", 2).to_version(2)
    found = await store.skills.get("t", "skill_a")
    assert found is not None
    assert (found.name, found.default_version, found.latest_version) == ("a-1", "1", "2")
    latest = await store.skills.latest_versions("t")
    assert latest == {"skill_a": second, "skill_b": make_draft("b").to_version(1)}
    await store.skills.add_version("t", make_draft("a", 3), b"three", default=True)
    found = await store.skills.get("t", "skill_a")
    assert found is not None and (found.name, found.default_version) == ("a-3", "3")
    assert [v.version for v in await store.skills.list_versions("t", "skill_a")] == ["1", "2", "3"]
    assert await store.skills.read_bundle("t", "skill_a", 2) == b"two"
    assert await store.skills.add_version("t", make_draft("x"), b"", default=True) is None


async def assigns_each_version_number_once(store: Store) -> None:
    await _store_skills(store, "a")
    adding = [
        store.skills.add_version("t", make_draft("a", n), b"x", default=False) for n in range(2, 6)
    ]
    made = [version.version for version in await asyncio.gather(*adding) if version is not None]
    assert sorted(made) == ["2", "3", "4", "5"]
    assert await store.skills.delete_version("t", "skill_a", 5)
    after = await store.skills.add_version("t", make_draft("a", 6), b"x", default=False)
    assert after is not None and after.version == "6", (
        "the number of a deleted version was used again"
    )


async def sets_the_default_version(store: Store) -> None:
    await _store_skills(store, "a")
    await store.skills.add_version("t", make_draft("a", 2), b"x", default=False)
    assert await store.skills.set_default_version("t", "skill_a", 2)
    assert not await store.skills.set_default_version("t", "skill_a", 3)
    assert not await store.skills.set_default_version("t", "skill_x", 1)
    found = await store.skills.get("t", "skill_a")
    assert found is not None and (found.name, found.default_version) == ("a-2", "2")


async def deletes_versions_except_the_default(store: Store) -> None:
    await _store_skills(store, "a")
    await store.skills.add_version("t", make_draft("a", 2), b"x", default=False)
    assert not await store.skills.delete_version("t", "skill_a", 1)
    assert not await store.skills.delete_version("t", "skill_a", 3)
    assert await store.skills.set_default_version("t", "skill_a", 2)
    assert await store.skills.delete_version("t", "skill_a", 1)
    assert await store.skills.read_bundle("t", "skill_a", 1) is None
    assert [v.version for v in await store.skills.list_versions("t", "skill_a")] == ["2"]
    assert await store.skills.delete_version("t", "skill_a", 2), "the last one"
    assert await store.skills.get("t", "skill_a") is None
    assert not await store.skills.delete_version("t", "skill_a", 2)


async def deletes_a_skill_with_its_versions(store: Store) -> None:
    await _store_skills(store, "a", "b")
    await store.skills.add_version("t", make_draft("a", 2), b"x", default=True)
    assert await store.skills.delete("t", "skill_a")
    assert not await store.skills.delete("t", "skill_a")
    assert await store.skills.list_versions("t", "skill_a") == ()
    assert await store.skills.read_bundle("t", "skill_a", 2) is None
    await store.sweep(Retention(max_responses=0), 9_000_000_000)
    assert [skill.id for skill in await store.skills.list_skills("t")] == ["skill_b"]


async def enforces_the_skill_quota(store: Store) -> None:
    skills = store.skills
    assert await skills.create("t", make_draft("a"), b"123", max_bytes=5)
    assert not await skills.create("t", make_draft("b"), b"123", max_bytes=5)
    assert await skills.get("t", "skill_b") is None
    assert (
        await skills.add_version("t", make_draft("a", 2), b"123", default=True, max_bytes=5) is None
    )
    found = await skills.get("t", "skill_a")
    assert found is not None and found.latest_version == "1"
    assert await skills.create("u", make_draft("b"), b"123", max_bytes=5)
    assert await skills.delete("t", "skill_a")
    both = [skills.create("t", make_draft(name), b"123", max_bytes=5) for name in "cd"]
    assert sorted(await asyncio.gather(*both)) == [False, True], (
        "concurrent uploads must not exceed the quota"
    )
