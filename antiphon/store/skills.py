"""The contract of a skill store: bundles of files in immutable versions.

Stores treat bundles as opaque bytes.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.resources.skills import Skill, SkillVersion

__all__ = ["SkillDraft", "SkillStore"]


class SkillDraft(Struct, frozen=True, kw_only=True):
    """A version that has no number yet. ``id``: the id of the version."""

    id: str
    skill_id: str
    created_at: int
    name: str
    description: str

    def to_version(self, number: int) -> SkillVersion:
        """Return the version with its number."""
        return SkillVersion(
            id=self.id,
            created_at=self.created_at,
            name=self.name,
            description=self.description,
            skill_id=self.skill_id,
            version=str(number),
        )


class SkillStore(Protocol):
    """The contract. All methods are per tenant: the id of another tenant is unknown. Version
    numbers start at 1 and are never reused. Methods that store return when the data is durable.
    """

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        """Store a new skill with the draft as version 1, its default.

        False, and nothing is stored, if the tenant's bundles would exceed ``max_bytes`` in all.
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

        None, and nothing is stored, if the skill is unknown or the tenant's bundles would exceed
        ``max_bytes`` in all.
        """

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make a version the default. False if there is no such version."""

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        """Return the skill, or None."""

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        """Return all skills in the order of creation."""

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """Return all versions, oldest first; none if the skill is unknown."""

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """Return the files of a version, or None."""

    async def delete(self, tenant: str, skill_id: str) -> bool:
        """Delete a skill with all its versions. False if it is unknown."""

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Delete a version; deleting the last version deletes the skill. False if it is unknown, or
        if it is the default and there are others.
        """
