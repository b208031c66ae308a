"""The contract of kept skills: bundles of files in versions, which never change.

A store does not look into a bundle.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.skills import Skill, SkillVersion

__all__ = ["SkillDraft", "SkillStore"]


class SkillDraft(Struct, frozen=True, kw_only=True):
    """A version before it has a number. ``id`` is its own."""

    id: str
    skill_id: str
    created_at: int
    name: str
    description: str

    def to_version(self, number: int) -> SkillVersion:
        """As it is kept and shown."""
        return SkillVersion(
            id=self.id,
            created_at=self.created_at,
            name=self.name,
            description=self.description,
            skill_id=self.skill_id,
            version=str(number),
        )


class SkillStore(Protocol):
    """All methods are per tenant: a foreign id is an unknown id. Numbers of versions are given
    once, from 1 on. What is kept returns when it is durable."""

    async def create(
        self, tenant: str, draft: SkillDraft, bundle: bytes, *, max_bytes: int | None = None
    ) -> bool:
        """Keep a new skill; the draft is its version 1, the default. False, and nothing is kept, if
        all bundles of the tenant together would be more than ``most`` bytes."""

    async def add_version(
        self,
        tenant: str,
        draft: SkillDraft,
        bundle: bytes,
        *,
        default: bool,
        max_bytes: int | None = None,
    ) -> SkillVersion | None:
        """Keep a new version of a skill, as its default if that is wanted. None, and nothing is
        kept, if the skill is unknown or all bundles together would be more than ``most``."""

    async def set_default_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make it the default. False if there is no such version."""

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        """The skill, or None."""

    async def list_skills(self, tenant: str) -> tuple[Skill, ...]:
        """In the order they were made."""

    async def list_versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """The oldest first; none of what is unknown."""

    async def read_bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """The files of a version, or None."""

    async def delete(self, tenant: str, skill_id: str) -> bool:
        """Forget it with all its versions. False if it is unknown."""

    async def delete_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Forget it; with the last one goes the skill. False if it is unknown, or the default while
        there are others."""
