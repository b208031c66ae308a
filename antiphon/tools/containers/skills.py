"""Skills in containers: what a request names becomes folders that a box can read, and lines that
the model is told. It knows no store and no HTTP.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from antiphon.attachments.skill_bundles import BadBundle, Bundle, bundled, unpacked
from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.wire.skills import (
    InlineSkill,
    LocalSkill,
    ShellSkill,
    SkillReference,
    SkillVersion,
)

__all__ = [
    "SKILLS_FOLDER",
    "ContainerSkill",
    "SkillLibrary",
    "check_inline_skills",
    "local_skills_prompt",
    "resolve_skills",
    "skills_prompt",
]

#: Where skills lie in a box.
SKILLS_FOLDER = "/mnt/skills"
_PROMPT = (
    "Skills are folders of instructions and scripts. Where one fits the task, read its SKILL.md"
    " first and do as it says:"
)


class SkillLibrary(Protocol):
    """Where skills are kept."""

    async def version(self, tenant: str, skill_id: str, version: str | None) -> SkillVersion:
        """One, by its number; ``latest``; None: the default. Raises ``NotFound``."""

    async def bundle(self, tenant: str, skill_id: str, version: str | None) -> bytes:
        """Its files as a zip. Raises ``NotFound``."""


class ContainerSkill(Struct, frozen=True, kw_only=True):
    """A skill for a container. ``key`` tells versions and contents apart; ``load`` brings the zip,
    and raises ``NotFound``."""

    name: str
    description: str
    key: str
    load: Callable[[], Awaitable[bytes]]

    async def read(self) -> Bundle:
        """Its files. Raises ``NotFound``, ``ToolError``."""
        content = await self.load()
        try:
            return await asyncio.to_thread(lambda: bundled(unpacked(content)))
        except BadBundle as error:
            raise ToolError(f"Skill {self.name}: {error}") from None


async def resolve_skills(
    library: SkillLibrary, tenant: str, skills: Iterable[ShellSkill], path: str
) -> tuple[ContainerSkill, ...]:
    """What a request names at ``path``. Raises ``InvalidRequest`` for what there is not."""
    found: dict[str, ContainerSkill] = {}
    for at, skill in enumerate(skills):
        where = f"{path}[{at}]"
        if isinstance(skill, InlineSkill):
            made = _inline_skill(skill, where)
        else:
            made = await _stored_skill(library, tenant, skill, where)
        if made.name in found:
            raise InvalidRequest(
                f"Two skills are called '{made.name}'.", param=where, code="invalid_value"
            )
        found[made.name] = made
    return tuple(found.values())


async def check_inline_skills(
    skills: Sequence[ShellSkill], resolved: Sequence[ContainerSkill], path: str
) -> None:
    """Raises ``InvalidRequest`` for a skill of a request that is none. Those that are kept were
    looked at when they came."""
    for at, (skill, made) in enumerate(zip(skills, resolved, strict=True)):
        if isinstance(skill, InlineSkill):
            try:
                await made.read()
            except ToolError as error:
                raise InvalidRequest(
                    error.message, param=f"{path}[{at}].source.data", code="invalid_skill"
                ) from None


def skills_prompt(skills: Iterable[ContainerSkill]) -> str:
    """What the model is told of those of its container; nothing, if there are none."""
    return _skills_prompt(
        (each.name, f"{SKILLS_FOLDER}/{each.name}", each.description) for each in skills
    )


def local_skills_prompt(skills: Iterable[LocalSkill]) -> str:
    """What the model is told of those of the client."""
    return _skills_prompt((each.name, each.path, each.description) for each in skills)


def _skills_prompt(skills: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        f"- {name} ({path}/SKILL.md): {' '.join(about.split())}" for name, path, about in skills
    ]
    return "\n".join(["", _PROMPT, *lines]) if lines else ""


async def _stored_skill(
    library: SkillLibrary, tenant: str, skill: SkillReference, path: str
) -> ContainerSkill:
    try:
        found = await library.version(tenant, skill.skill_id, skill.version)
    except NotFound as error:
        field = "version" if error.param == "version" else "skill_id"
        raise InvalidRequest(error.message, param=f"{path}.{field}", code=error.code) from None
    return ContainerSkill(
        name=found.name,
        description=found.description,
        key=f"{found.skill_id} {found.version}",
        load=partial(library.bundle, tenant, found.skill_id, found.version),
    )


def _inline_skill(skill: InlineSkill, path: str) -> ContainerSkill:
    try:
        content = b64decode(skill.source.data, validate=True)
    except binascii.Error:
        raise InvalidRequest(
            "The skill is no base64.", param=f"{path}.source.data", code="invalid_value"
        ) from None

    async def load() -> bytes:
        return content

    return ContainerSkill(
        name=skill.name,
        description=skill.description,
        key=sha256(content).hexdigest(),
        load=load,
    )
