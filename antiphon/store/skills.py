"""The contract of kept skills: bundles of files in versions, which never change.

A store does not look into a bundle.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.skills import Skill, SkillVersion

__all__ = ["Draft", "SkillStore"]


class Draft(Struct, frozen=True, kw_only=True):
    """A version before it has a number. ``id`` is its own."""

    id: str
    skill_id: str
    created_at: int
    name: str
    description: str

    def numbered(self, number: int) -> SkillVersion:
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
        self, tenant: str, draft: Draft, bundle: bytes, *, most: int | None = None
    ) -> bool:
        """Keep a new skill; the draft is its version 1, the default. False, and nothing is kept, if
        all bundles of the tenant together would be more than ``most`` bytes."""

    async def add(
        self, tenant: str, draft: Draft, bundle: bytes, *, default: bool, most: int | None = None
    ) -> SkillVersion | None:
        """Keep a new version of a skill, as its default if that is wanted. None, and nothing is
        kept, if the skill is unknown or all bundles together would be more than ``most``."""

    async def choose(self, tenant: str, skill_id: str, version: int) -> bool:
        """Make it the default. False if there is no such version."""

    async def get(self, tenant: str, skill_id: str) -> Skill | None:
        """The skill, or None."""

    async def all(self, tenant: str) -> tuple[Skill, ...]:
        """In the order they were made."""

    async def versions(self, tenant: str, skill_id: str) -> tuple[SkillVersion, ...]:
        """The oldest first; none of what is unknown."""

    async def bundle(self, tenant: str, skill_id: str, version: int) -> bytes | None:
        """The files of a version, or None."""

    async def drop(self, tenant: str, skill_id: str) -> bool:
        """Forget it with all its versions. False if it is unknown."""

    async def drop_version(self, tenant: str, skill_id: str, version: int) -> bool:
        """Forget it; with the last one goes the skill. False if it is unknown, or the default while
        there are others."""
