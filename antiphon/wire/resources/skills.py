"""Skills: types and parsers.

Source of the fields: the types of the ``openai`` SDK, version 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.wire.parsing.fields import (
    classes_by_tag,
    convert,
    known_fields,
    read_array,
    read_object,
    read_tag,
)

__all__ = [
    "DefaultVersion",
    "DeletedSkillVersion",
    "InlineSkill",
    "InlineSource",
    "LocalSkill",
    "ShellSkill",
    "Skill",
    "SkillReference",
    "SkillVersion",
    "SkillVersionForm",
    "read_local_skills",
    "read_shell_skills",
]

#: Skills in one environment: OpenAI's limit.
_MAX_SKILLS = 200
_SkillName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_SkillDescription = Annotated[str, Meta(min_length=1, max_length=1024)]


class Skill(Struct, frozen=True, kw_only=True):
    """A skill as the API shows it. ``name`` and ``description`` come from its default version."""

    id: str
    object: Literal["skill"] = "skill"
    created_at: int
    default_version: str
    description: str
    latest_version: str
    name: str


class SkillVersion(Struct, frozen=True, kw_only=True):
    """One immutable version of a skill. ``version``: a decimal number; the first version is 1."""

    id: str
    object: Literal["skill.version"] = "skill.version"
    created_at: int
    description: str
    name: str
    skill_id: str
    version: str


class DeletedSkillVersion(Struct, frozen=True, kw_only=True):
    """A deleted version of a skill."""

    id: str
    object: Literal["skill.version.deleted"] = "skill.version.deleted"
    deleted: Literal[True] = True
    version: str


class SkillReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="skill_reference"):
    """A reference to a stored skill. ``version``: the number of the version, or ``latest``. None
    means the default version."""

    skill_id: str
    version: Annotated[str, Meta(pattern="^([1-9][0-9]*|latest)$")] | None = None


class InlineSource(Struct, frozen=True, kw_only=True):
    """The files of an inline skill: a zip archive in base64."""

    type: Literal["base64"] = "base64"
    media_type: Literal["application/zip"] = "application/zip"
    data: str


class InlineSkill(Struct, frozen=True, kw_only=True, tag_field="type", tag="inline"):
    """A skill whose files are part of the request."""

    name: _SkillName
    description: _SkillDescription
    source: InlineSource


class LocalSkill(Struct, frozen=True, kw_only=True):
    """A skill on the client's machine."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: _SkillDescription
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


ShellSkill = SkillReference | InlineSkill
_SHELL_SKILL_TYPES: Mapping[str, type[ShellSkill]] = classes_by_tag((SkillReference, InlineSkill))


def read_shell_skills(raw: object, path: str) -> tuple[ShellSkill, ...]:
    """Read the skills of a container. Raises ``InvalidRequest``."""
    return tuple(
        _shell_skill(each, f"{path}[{at}]")
        for at, each in enumerate(read_array(raw, path, _MAX_SKILLS))
    )


def _shell_skill(raw: object, path: str) -> ShellSkill:
    fields = read_object(raw, path)
    kind = _SHELL_SKILL_TYPES[read_tag(fields, path, _SHELL_SKILL_TYPES)]
    return convert(known_fields(fields, {*kind.__struct_fields__, "type"}, path), kind, path)


def read_local_skills(raw: object, path: str) -> tuple[LocalSkill, ...]:
    """Read the skills of a local shell. Raises ``InvalidRequest``."""
    return tuple(
        convert(
            known_fields(
                read_object(each, f"{path}[{at}]"), LocalSkill.__struct_fields__, f"{path}[{at}]"
            ),
            LocalSkill,
            f"{path}[{at}]",
        )
        for at, each in enumerate(read_array(raw, path, _MAX_SKILLS))
    )


class DefaultVersion(Struct, frozen=True):
    """A request to change the default version of a skill. The default version is used if a request
    names the skill without a version."""

    default_version: str


class SkillVersionForm(Struct, frozen=True):
    """The form fields of a request that adds a version to a skill. ``default``: whether the new
    version becomes the skill's default version."""

    default: bool = False
