"""The skill store. A skill has immutable versions. The content of each version is a
bundle of files.

Stores treat bundles as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from msgspec import Struct

from antiphon.wire.resources.skills import Skill, SkillVersion

from .records import exceeds
from .values import Document, ValueStore, delete_value

__all__ = ["SkillDraft", "SkillStore"]

_R = TypeVar("_R")
#: Seconds after which a bundle without a version counts as left behind by a process that died.
_MAX_ADDING_S = 3600


class SkillDraft(Struct, frozen=True, kw_only=True):
    """A new version of a skill. This version has no number yet; the store gives it a number.
    ``id``: the id of the version."""

    id: str
    skill_id: str
    created_at: int
    name: str
    description: str

    def to_version(self, number: int) -> SkillVersion:
        """Return the draft as a version with this number."""
        return SkillVersion(
            id=self.id,
            created_at=self.created_at,
            name=self.name,
            description=self.description,
            skill_id=self.skill_id,
            version=str(number),
        )


class _Version(Struct):
    """A version of a skill, and the size of its bundle in bytes."""

    version: SkillVersion
    bytes: int


class _Skill(Struct):
    """A skill with its versions by number. ``default``: the number of the default version.
    ``last``: the highest number that was ever used."""

    created_at: int
    default: int
    last: int
    versions: dict[int, _Version]

    def resource(self, skill_id: str) -> Skill:
        """Return the skill as clients see it."""
        default = self.versions[self.default].version
        return Skill(
            id=skill_id,
            created_at=self.created_at,
            name=default.name,
            description=default.description,
            default_version=str(self.default),
            latest_version=str(max(self.versions)),
        )


class _Skills(Struct):
    """The skills of a tenant: id → skill. ``loose``: the ids of bundles that are stored but belong
    to no version, because their version is being added or was deleted; with Unix seconds."""

    skills: dict[str, _Skill] = {}
    loose: dict[str, int] = {}

    @property
    def total_bytes(self) -> int:
        return sum(each.bytes for skill in self.skills.values() for each in skill.versions.values())


class SkillStore:
    """The skills of all tenants, in values of the store: one value with all skills of a tenant, and
    one value for each bundle.

    The id of another tenant's skill counts as unknown. Version numbers start at 1 and are never
    reused. Methods that store data return after the data is durable. If a process dies while it
    adds or deletes a version, a later addition deletes the bundle that belongs to no version.
    """

    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        """Store a new skill with the draft as its first version, which is also the default version.

        Returns False and stores nothing if all bundles of the tenant together would have more than
        ``max_bytes`` bytes.
        """

        def change(skills: _Skills) -> bool:
            if exceeds(skills.total_bytes + len(bundle), max_bytes):
                return False
            first = {1: _Version(draft.to_version(1), len(bundle))}
            skills.skills[draft.skill_id] = _Skill(draft.created_at, 1, 1, first)
            return True

        return await self._add(tenant, draft, bundle, change) or False

    async def add_version(
        self,
        tenant: str,
        draft: SkillDraft,
        bundle: bytes,
        *,
        default: bool,
        max_bytes: int | None = None,
    ) -> SkillVersion | None:
        """Store a new version of a skill. ``default``: make it the default version.

        Returns None and stores nothing if the skill is unknown, or if all bundles of the tenant
        together would have more than ``max_bytes`` bytes.
        """

        def change(skills: _Skills) -> SkillVersion | None:
            skill = skills.skills.get(draft.skill_id)
            if skill is None or exceeds(skills.total_bytes + len(bundle), max_bytes):
                return None
            skill.last += 1
            version = draft.to_version(skill.last)
            skill.versions[skill.last] = _Version(version, len(bundle))
            if default:
                skill.default = skill.last
            return version

        return await self._add(tenant, draft, bundle, change)

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make a version the default version. Returns False if there is no such version."""

        def change(skills: _Skills) -> bool:
            skill = skills.skills.get(skill_id)
            if skill is None or version not in skill.versions:
                return False
            skill.default = version
            return True

        return await self._skills(tenant).update(change)

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        """Return the skill. Returns None if it is unknown."""
        skill = await self._find(tenant, skill_id)
        return None if skill is None else skill.resource(skill_id)

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        """Return all skills of a tenant in the order of creation."""
        skills = (await self._skills(tenant).load()).skills
        return tuple(skill.resource(id) for id, skill in skills.items())

    async def total_bytes(self, tenant: str) -> int:
        """Return the size of all bundles of a tenant, in bytes."""
        return (await self._skills(tenant).load()).total_bytes

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """Return all versions of a skill, oldest first. Returns no versions if the skill is
        unknown."""
        skill = await self._find(tenant, skill_id)
        return () if skill is None else tuple(each.version for each in skill.versions.values())

    async def latest_versions(self, tenant: str) -> Mapping[str, SkillVersion]:
        """Return the newest version of each skill of a tenant: id of the skill → version."""
        skills = (await self._skills(tenant).load()).skills
        return {id: each.versions[max(each.versions)].version for id, each in skills.items()}

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """Return the bundle of a version. Returns None if the version is unknown."""
        skill = await self._find(tenant, skill_id)
        found = None if skill is None else skill.versions.get(version)
        return None if found is None else await self._values.read(tenant, _bundle(found.version.id))

    async def delete(self, tenant: str, skill_id: str) -> bool:
        """Delete a skill with all its versions. Returns False if the skill is unknown."""

        def change(skills: _Skills) -> list[str]:
            skill = skills.skills.pop(skill_id, None)
            ids = [each.version.id for each in skill.versions.values()] if skill else []
            skills.loose.update(dict.fromkeys(ids, 0))
            return ids

        deleted = await self._skills(tenant).update(change)
        await self._drop_bundles(tenant, deleted)
        return bool(deleted)

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Delete a version. Deleting the only version deletes the skill. Returns False if the
        version is unknown, or if it is the default version of a skill that has other versions."""

        def change(skills: _Skills) -> list[str]:
            skill = skills.skills.get(skill_id)
            if skill is None or version not in skill.versions:
                return []
            if len(skill.versions) == 1:
                del skills.skills[skill_id]
            elif version == skill.default:
                return []
            id = skill.versions.pop(version).version.id
            skills.loose[id] = 0
            return [id]

        deleted = await self._skills(tenant).update(change)
        await self._drop_bundles(tenant, deleted)
        return bool(deleted)

    def _skills(self, tenant: str) -> Document[_Skills]:
        return Document(self._values, tenant, "skills", _Skills)

    async def _find(self, tenant: str, skill_id: str) -> _Skill | None:
        return (await self._skills(tenant).load()).skills.get(skill_id)

    async def _add(
        self, tenant: str, draft: SkillDraft, bundle: bytes, change: Callable[[_Skills], _R | None]
    ) -> _R | None:
        """Store the bundle of a new version, and then the version itself. Remove the bundle if
        ``change`` does not add the version."""

        def announce(skills: _Skills) -> list[str]:
            oldest = draft.created_at - _MAX_ADDING_S
            lost = [id for id, since in skills.loose.items() if since < oldest]
            skills.loose[draft.id] = draft.created_at
            return lost

        def add(skills: _Skills) -> _R | None:
            if result := change(skills):
                skills.loose.pop(draft.id, None)
            return result

        await self._drop_bundles(tenant, await self._skills(tenant).update(announce))
        await self._values.replace(tenant, _bundle(draft.id), None, bundle)
        result = await self._skills(tenant).update(add)
        if not result:
            await self._drop_bundles(tenant, [draft.id])
        return result

    async def _drop_bundles(self, tenant: str, ids: Collection[str]) -> None:
        """Delete bundles that belong to no version."""
        for id in ids:
            await delete_value(self._values, tenant, _bundle(id))
        if ids:
            await self._skills(tenant).update(
                lambda skills: [skills.loose.pop(id, 0) for id in ids]
            )


def _bundle(version_id: str) -> str:
    """Return the name of the value with the bundle of a version."""
    return f"skill_bundle {version_id}"
