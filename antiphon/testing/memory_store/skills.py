"""The in-memory skill store, the reference implementation of the contract ``SkillStore``."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from antiphon.store.common.quotas import exceeds
from antiphon.store.skills import SkillDraft
from antiphon.wire.resources.skills import Skill, SkillVersion

__all__ = ["MemorySkills"]


class _SkillRow(Struct):
    """A skill with its versions by number. ``default``: the number of the default version.
    ``last``: the highest number ever used."""

    created_at: int
    default: int
    last: int
    versions: dict[int, tuple[SkillVersion, bytes]]


class MemorySkills:
    """Implements ``SkillStore`` with a dictionary. ``check``: a function that the methods call
    first. It raises ``StoreError`` if the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._skills: dict[tuple[str, str], _SkillRow] = {}

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        self._check()
        if not self._fits(tenant, bundle, max_bytes):
            return False
        first = {1: (draft.to_version(1), bundle)}
        self._skills[tenant, draft.skill_id] = _SkillRow(draft.created_at, 1, 1, first)
        return True

    async def add_version(
        self,
        tenant: str,
        draft: SkillDraft,
        bundle: bytes,
        *,
        default: bool,
        max_bytes: int | None = None,
    ) -> SkillVersion | None:
        self._check()
        row = self._skills.get((tenant, draft.skill_id))
        if row is None or not self._fits(tenant, bundle, max_bytes):
            return None
        row.last += 1
        version = draft.to_version(row.last)
        row.versions[row.last] = (version, bundle)
        if default:
            row.default = row.last
        return version

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        self._check()
        row = self._skills.get((tenant, skill_id))
        if row is None or version not in row.versions:
            return False
        row.default = version
        return True

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        self._check()
        row = self._skills.get((tenant, skill_id))
        return None if row is None else _skill_of(skill_id, row)

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        self._check()
        return tuple(
            _skill_of(skill_id, row)
            for (owner, skill_id), row in self._skills.items()
            if owner == tenant
        )

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        self._check()
        row = self._skills.get((tenant, skill_id))
        return () if row is None else tuple(version for version, _ in row.versions.values())

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        self._check()
        row = self._skills.get((tenant, skill_id))
        found = None if row is None else row.versions.get(version)
        return None if found is None else found[1]

    async def delete(self, tenant: str, skill_id: str) -> bool:
        self._check()
        return self._skills.pop((tenant, skill_id), None) is not None

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        self._check()
        row = self._skills.get((tenant, skill_id))
        if row is None or version not in row.versions:
            return False
        if len(row.versions) == 1:
            del self._skills[tenant, skill_id]
            return True
        if version == row.default:
            return False
        del row.versions[version]
        return True

    def delete_tenant(self, tenant: str) -> int:
        """Delete the skills of a tenant. Return their number."""
        keys = [key for key in self._skills if key[0] == tenant]
        for key in keys:
            del self._skills[key]
        return len(keys)

    def total_bytes(self, tenant: str) -> int:
        """Return the size of all bundles of a tenant, in bytes."""
        return sum(
            len(content)
            for (owner, _), row in self._skills.items()
            if owner == tenant
            for _, content in row.versions.values()
        )

    def _fits(self, tenant: str, bundle: bytes, max_bytes: int | None) -> bool:
        return not exceeds(self.total_bytes(tenant) + len(bundle), max_bytes)


def _skill_of(skill_id: str, row: _SkillRow) -> Skill:
    default, _ = row.versions[row.default]
    return Skill(
        id=skill_id,
        created_at=row.created_at,
        name=default.name,
        description=default.description,
        default_version=str(row.default),
        latest_version=str(max(row.versions)),
    )
