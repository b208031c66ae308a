"""The skill store. A skill has immutable versions. The content of each version is a
bundle of files.

Stores treat bundles as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from antiphon.wire.resources.skills import Skill, SkillVersion

from .common.quotas import exceeds
from .values import Document, ValueStore

__all__ = ["SkillDraft", "SkillStore", "bundle_bytes"]

_R = TypeVar("_R")


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


_Skills = dict[str, _Skill]


class SkillStore:
    """The skills of all tenants, in values of the store: one value with all skills of a tenant, and
    one value for each bundle.

    The id of another tenant's skill counts as unknown. Version numbers start at 1 and are never
    reused. Methods that store data return after the data is durable.
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
            if exceeds(_total_bytes(skills) + len(bundle), max_bytes):
                return False
            first = {1: _Version(draft.to_version(1), len(bundle))}
            skills[draft.skill_id] = _Skill(draft.created_at, 1, 1, first)
            return True

        return await self._add_bundle(tenant, draft.id, bundle, change) or False

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
            skill = skills.get(draft.skill_id)
            if skill is None or exceeds(_total_bytes(skills) + len(bundle), max_bytes):
                return None
            skill.last += 1
            version = draft.to_version(skill.last)
            skill.versions[skill.last] = _Version(version, len(bundle))
            if default:
                skill.default = skill.last
            return version

        return await self._add_bundle(tenant, draft.id, bundle, change)

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make a version the default version. Returns False if there is no such version."""

        def change(skills: _Skills) -> bool:
            skill = skills.get(skill_id)
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
        skills = await self._skills(tenant).load()
        return tuple(skill.resource(id) for id, skill in skills.items())

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """Return all versions of a skill, oldest first. Returns no versions if the skill is
        unknown."""
        skill = await self._find(tenant, skill_id)
        return () if skill is None else tuple(each.version for each in skill.versions.values())

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """Return the bundle of a version. Returns None if the version is unknown."""
        skill = await self._find(tenant, skill_id)
        found = None if skill is None else skill.versions.get(version)
        return None if found is None else await self._values.read(tenant, _bundle(found.version.id))

    async def delete(self, tenant: str, skill_id: str) -> bool:
        """Delete a skill with all its versions. Returns False if the skill is unknown."""
        skill = await self._skills(tenant).update(lambda skills: skills.pop(skill_id, None))
        if skill is None:
            return False
        await self._drop_bundles(tenant, [each.version.id for each in skill.versions.values()])
        return True

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Delete a version. Deleting the only version deletes the skill. Returns False if the
        version is unknown, or if it is the default version of a skill that has other versions."""

        def change(skills: _Skills) -> _Version | None:
            skill = skills.get(skill_id)
            if skill is None or version not in skill.versions:
                return None
            if len(skill.versions) == 1:
                del skills[skill_id]
            elif version == skill.default:
                return None
            return skill.versions.pop(version)

        deleted = await self._skills(tenant).update(change)
        if deleted is None:
            return False
        await self._drop_bundles(tenant, [deleted.version.id])
        return True

    def _skills(self, tenant: str) -> Document[_Skills]:
        return _document(self._values, tenant)

    async def _find(self, tenant: str, skill_id: str) -> _Skill | None:
        return (await self._skills(tenant).load()).get(skill_id)

    async def _add_bundle(
        self, tenant: str, version_id: str, bundle: bytes, change: Callable[[_Skills], _R | None]
    ) -> _R | None:
        """Store the bundle of a new version, and then the version itself. Remove the bundle if
        ``change`` does not add the version."""
        await self._values.replace(tenant, _bundle(version_id), None, bundle)
        result = await self._skills(tenant).update(change)
        if not result:
            await self._drop_bundles(tenant, [version_id])
        return result

    async def _drop_bundles(self, tenant: str, version_ids: Iterable[str]) -> None:
        for version_id in version_ids:
            name = _bundle(version_id)
            await self._values.replace(tenant, name, await self._values.read(tenant, name), None)


async def bundle_bytes(values: ValueStore, tenant: str) -> int:
    """Return the size of all bundles that ``SkillStore`` keeps for a tenant, in bytes."""
    return _total_bytes(await _document(values, tenant).load())


def _document(values: ValueStore, tenant: str) -> Document[_Skills]:
    return Document(values, tenant, "skills", _Skills)


def _bundle(version_id: str) -> str:
    """Return the name of the value with the bundle of a version."""
    return f"skill_bundle {version_id}"


def _total_bytes(skills: _Skills) -> int:
    return sum(each.bytes for skill in skills.values() for each in skill.versions.values())
