"""Skills of Anthropic's API, translated from skills of OpenAI's API.

The fields follow the types of the ``anthropic`` SDK 2.14. The id of a version is its number,
because paths contain it. Both APIs show the same skills.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.resources.skills import Skill, SkillVersion

from .files import next_page
from .types import rfc3339


class SkillSource(Struct, frozen=True):
    """Where a skill comes from: all skills here are those of users."""

    type: Literal["custom"] = "custom"


class MessageSkill(Struct, frozen=True, kw_only=True):
    """A skill. ``display_name``: the name in its ``SKILL.md``. Times have the form of RFC 3339."""

    id: str
    display_name: str
    latest_version_id: str
    created_at: str
    updated_at: str
    source: SkillSource = SkillSource()
    type: Literal["skill"] = "skill"

    @classmethod
    def of(cls, skill: Skill, updated_at: int) -> MessageSkill:
        """Translate a skill. ``updated_at``: when its newest version was added, in Unix seconds."""
        return cls(
            id=skill.id,
            display_name=skill.name,
            latest_version_id=skill.latest_version,
            created_at=rfc3339(skill.created_at),
            updated_at=rfc3339(updated_at),
        )


class MessageSkillVersion(Struct, frozen=True, kw_only=True):
    """An immutable version of a skill. ``id``: its number."""

    id: str
    skill_id: str
    name: str
    description: str
    created_at: str
    type: Literal["skill_version"] = "skill_version"

    @classmethod
    def of(cls, version: SkillVersion) -> MessageSkillVersion:
        return cls(
            id=version.version,
            skill_id=version.skill_id,
            name=version.name,
            description=version.description,
            created_at=rfc3339(version.created_at),
        )


class MessageSkillPage(Struct, frozen=True, kw_only=True):
    """A page of skills. ``next_page``: the value of ``page`` for the request of the next page."""

    data: tuple[MessageSkill, ...]
    next_page: str | None = None


class MessageSkillVersionPage(Struct, frozen=True, kw_only=True):
    """A page of the versions of a skill."""

    data: tuple[MessageSkillVersion, ...]
    next_page: str | None = None


class DeletedMessageSkill(Struct, frozen=True):
    id: str
    type: Literal["skill_deleted"] = "skill_deleted"

    @classmethod
    def of(cls, deleted: DeletedObject) -> DeletedMessageSkill:
        return cls(deleted.id)


class DeletedMessageSkillVersion(Struct, frozen=True):
    id: str
    type: Literal["skill_version_deleted"] = "skill_version_deleted"


def message_version_page(page: Page[SkillVersion]) -> MessageSkillVersionPage:
    """Translate a page of versions."""
    data = tuple(map(MessageSkillVersion.of, page.data))
    return MessageSkillVersionPage(data=data, next_page=next_page(page))
