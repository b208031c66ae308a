"""The contract of a skill store. A skill has immutable versions. The content of each version is a
bundle of files.

Stores treat bundles as opaque bytes.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.resources.skills import Skill, SkillVersion

__all__ = ["SkillDraft", "SkillStore"]


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


class SkillStore(Protocol):
    """The contract of a skill store. All methods are per tenant. The id of another tenant's skill
    counts as unknown. Version numbers start at 1 and are never reused. Methods that store data
    return after the data is durable."""

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        """Store a new skill with the draft as its first version, which is also the default version.

        Returns False and stores nothing if all bundles of the tenant together would have more than
        ``max_bytes`` bytes.
        """

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

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make a version the default version. Returns False if there is no such version."""

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        """Return the skill. Returns None if it is unknown."""

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        """Return all skills of a tenant in the order of creation."""

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """Return all versions of a skill, oldest first. Returns no versions if the skill is
        unknown."""

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """Return the bundle of a version. Returns None if the version is unknown."""

    async def delete(self, tenant: str, skill_id: str) -> bool:
        """Delete a skill with all its versions. Returns False if the skill is unknown."""

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Delete a version. Deleting the only version deletes the skill. Returns False if the
        version is unknown, or if it is the default version of a skill that has other versions."""
