"""Skills: how they and their versions are shown, and how requests name them. Field lists: the
``openai`` SDK's types, 3.52.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.wire.parsing.errors import missing
from antiphon.wire.parsing.fields import array, by_tag, converted, fields_of, known, tag_of
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS, Limits, parse

__all__ = [
    "DeletedVersion",
    "InlineSkill",
    "InlineSource",
    "LocalSkill",
    "ShellSkill",
    "Skill",
    "SkillReference",
    "SkillVersion",
    "default_version",
    "local_skills",
    "shell_skills",
]

#: Of one environment: OpenAI's limit.
_MOST = 200
_NamedSo = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
_About = Annotated[str, Meta(min_length=1, max_length=1024)]


class Skill(Struct, frozen=True, kw_only=True):
    """A skill as it is shown; name and description are those of its default version."""

    id: str
    object: Literal["skill"] = "skill"
    created_at: int
    default_version: str
    description: str
    latest_version: str
    name: str


class SkillVersion(Struct, frozen=True, kw_only=True):
    """One version, which never changes. ``version`` is a whole number from 1 on."""

    id: str
    object: Literal["skill.version"] = "skill.version"
    created_at: int
    description: str
    name: str
    skill_id: str
    version: str


class DeletedVersion(Struct, frozen=True, kw_only=True):
    """A version that is gone."""

    id: str
    object: Literal["skill.version.deleted"] = "skill.version.deleted"
    deleted: Literal[True] = True
    version: str


class SkillReference(Struct, frozen=True, kw_only=True, tag_field="type", tag="skill_reference"):
    """A kept skill. ``version``: its number, ``latest``, or None for the default one."""

    skill_id: str
    version: Annotated[str, Meta(pattern="^([1-9][0-9]*|latest)$")] | None = None


class InlineSource(Struct, frozen=True, kw_only=True):
    """A zip, in base64."""

    type: Literal["base64"] = "base64"
    media_type: Literal["application/zip"] = "application/zip"
    data: str


class InlineSkill(Struct, frozen=True, kw_only=True, tag_field="type", tag="inline"):
    """A skill that comes with the request."""

    name: _NamedSo
    description: _About
    source: InlineSource


class LocalSkill(Struct, frozen=True, kw_only=True):
    """A skill that lies with the client."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: _About
    path: Annotated[str, Meta(min_length=1, max_length=4096)]


ShellSkill = SkillReference | InlineSkill
_KINDS: Mapping[str, type[ShellSkill]] = by_tag((SkillReference, InlineSkill))


def shell_skills(raw: Any, path: str) -> tuple[ShellSkill, ...]:
    """The skills of a container. Raises ``InvalidRequest``."""
    return tuple(
        _shell_skill(each, f"{path}[{at}]") for at, each in enumerate(array(raw, path, _MOST))
    )


def _shell_skill(raw: Any, path: str) -> ShellSkill:
    fields = fields_of(raw, path)
    kind = _KINDS[tag_of(fields, path, _KINDS)]
    return converted(known(fields, {*kind.__struct_fields__, "type"}, path), kind, path)


def local_skills(raw: Any, path: str) -> tuple[LocalSkill, ...]:
    """The skills of a client's machine. Raises ``InvalidRequest``."""
    return tuple(
        converted(
            known(fields_of(each, f"{path}[{at}]"), LocalSkill.__struct_fields__, f"{path}[{at}]"),
            LocalSkill,
            f"{path}[{at}]",
        )
        for at, each in enumerate(array(raw, path, _MOST))
    )


def default_version(body: bytes, limits: Limits = DEFAULT_LIMITS) -> str:
    """What ``POST /skills/{id}`` sets. Raises ``InvalidRequest``."""
    raw = parse(body, limits)
    if "default_version" not in raw:
        raise missing("default_version")
    return converted(raw, _Default, "").default_version


class _Default(Struct, frozen=True):
    default_version: str
