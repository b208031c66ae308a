"""Skills in PostgreSQL: skills, their versions and their bundles in a table each."""

from __future__ import annotations

from antiphon.store.row_mapping import encode, skill_of, skill_version_of
from antiphon.store.skills import Draft
from antiphon.wire.skills import Skill, SkillVersion

from .pool import ConnectionPool, Transaction, key

__all__ = ["PostgresSkills"]


class PostgresSkills:
    """``SkillStore`` over a cluster."""

    def __init__(self, cluster: ConnectionPool) -> None:
        self._cluster = cluster

    async def create(
        self, tenant: str, draft: Draft, bundle: bytes, *, most: int | None = None
    ) -> bool:
        async with self._cluster.transaction() as inside:
            if not await _has_room(inside, tenant, bundle, most):
                return False
            place = await inside.value("put_skill", tenant, draft.skill_id, draft.created_at)
            await _keep(inside, place, draft.numbered(1), bundle)
            return True

    async def add(
        self, tenant: str, draft: Draft, bundle: bytes, *, default: bool, most: int | None = None
    ) -> SkillVersion | None:
        async with self._cluster.transaction() as inside:
            if not await _has_room(inside, tenant, bundle, most):
                return None
            named = key(draft.skill_id)
            found = await inside.rows("next_skill_version", tenant, named, default)
            if not found:
                return None
            ((place, number),) = found
            version = draft.numbered(number)
            await _keep(inside, place, version, bundle)
            return version

    async def choose(self, tenant: str, skill_id: str, version: int) -> bool:
        return bool(
            await self._cluster.rows("choose_skill_version", tenant, key(skill_id), version)
        )

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        found = await self._cluster.shaped(skill_of, "skills", tenant, key(skill_id))
        return found[0] if found else None

    async def all(self, tenant: str) -> tuple[Skill, ...]:
        return tuple(await self._cluster.shaped(skill_of, "skills", tenant, None))

    async def versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        return tuple(
            await self._cluster.shaped(skill_version_of, "skill_versions", tenant, key(skill_id))
        )

    async def bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        found = await self._cluster.rows("bundle", tenant, key(skill_id), version)
        return bytes(found[0][0]) if found else None

    async def drop(self, tenant: str, skill_id: str) -> bool:
        return bool(await self._cluster.rows("drop_skill", tenant, key(skill_id)))

    async def drop_version(self, tenant: str, skill_id: str, version: int) -> bool:
        async with self._cluster.transaction() as inside:
            asked = (tenant, key(skill_id), version)
            await inside.rows("skill_row", *asked[:2])  # one at a time: which is the last?
            if await inside.rows("drop_skill_version", *asked):
                return True
            return bool(await inside.rows("drop_last_version", *asked))


async def _has_room(inside: Transaction, tenant: str, bundle: bytes, most: int | None) -> bool:
    await inside.rows("filing", tenant)
    held = await inside.value("skill_bytes", tenant)
    return most is None or held + len(bundle) <= most


async def _keep(inside: Transaction, skill: int, version: SkillVersion, bundle: bytes) -> None:
    row = (skill, int(version.version), len(bundle), encode(version))
    place = await inside.value("put_skill_version", *row)
    await inside.rows("put_bundle", place, bundle)
