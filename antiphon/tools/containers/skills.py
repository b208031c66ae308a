"""Skills in containers. A skill is a folder of instructions and scripts. For each skill that a
request names, the container gets a copy of the folder, and the prompt gets a line about the
skill."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from antiphon.attachments.skill_bundles import Bundle, InvalidBundle, make_bundle, unpack
from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.wire.resources.skills import (
    InlineSkill,
    LocalSkill,
    ShellSkill,
    SkillReference,
    SkillVersion,
)

#: The folder in a container where skills are mounted.
SKILLS_FOLDER = "/mnt/skills"
_PROMPT = (
    "Skills are folders of instructions and scripts. If one fits the task, read its SKILL.md"
    " first and follow it:"
)


class SkillLibrary(Protocol):
    """The stored skills of all tenants. Skills for containers are read from it."""

    async def retrieve_version(
        self, tenant: str, skill_id: str, version: str | None
    ) -> SkillVersion:
        """Return a version of a skill. ``version`` is a number or ``latest``. If it is None, the
        default version is returned. Raises ``NotFound``."""

    async def read_bundle(self, tenant: str, skill_id: str, version: str | None) -> bytes:
        """Return the files of a skill version as the bytes of a zip archive. Raises
        ``NotFound``."""


class SkillSummary(Struct, frozen=True):
    """The name and the description of a skill, which the model sees."""

    name: str
    description: str


class ContainerSkill(Struct, frozen=True, kw_only=True):
    """A skill for a container.

    - ``key``: identifies the version or the inline content of the skill.
    - ``source``: the skill as a request would contain it, with its exact version or its content. It
      is sent to the process that owns the container.
    - ``load``: returns the skill's files as a zip archive. Raises ``NotFound``.
    """

    name: str
    description: str
    key: str
    source: ShellSkill
    load: Callable[[], Awaitable[bytes]]

    @property
    def summary(self) -> SkillSummary:
        """The name and the description of the skill, which the model sees."""
        return SkillSummary(self.name, self.description)

    async def read(self) -> Bundle:
        """Return the skill's files. Raises ``NotFound``, ``ToolError``."""
        content = await self.load()
        try:
            return await asyncio.to_thread(lambda: make_bundle(unpack(content)))
        except InvalidBundle as error:
            raise ToolError(f"Skill {self.name}: {error}") from None


async def resolve_skills(
    library: SkillLibrary, tenant: str, skills: Iterable[ShellSkill], path: str
) -> tuple[ContainerSkill, ...]:
    """Return the skills that a request lists, in a form that containers can use. Raises
    ``InvalidRequest`` for unknown skills and for two skills with the same name. ``path``: the path
    of the list in the request, for error messages."""
    resolved: dict[str, ContainerSkill] = {}
    for index, skill in enumerate(skills):
        skill_path = f"{path}[{index}]"
        if isinstance(skill, InlineSkill):
            container_skill = _inline_skill(skill, skill_path)
        else:
            container_skill = await _stored_skill(library, tenant, skill, skill_path)
        if container_skill.name in resolved:
            raise InvalidRequest(
                f"Two skills are called '{container_skill.name}'.",
                param=skill_path,
                code="invalid_value",
            )
        resolved[container_skill.name] = container_skill
    return tuple(resolved.values())


async def check_inline_skills(
    skills: Sequence[ShellSkill], resolved: Sequence[ContainerSkill], path: str
) -> None:
    """Raise ``InvalidRequest`` if the files of an inline skill are invalid. Stored skills are not
    checked here, because they were checked when they were created. ``resolved``: the result of
    ``resolve_skills`` for ``skills``."""
    for index, (skill, container_skill) in enumerate(zip(skills, resolved, strict=True)):
        if isinstance(skill, InlineSkill):
            try:
                await container_skill.read()
            except ToolError as error:
                raise InvalidRequest(
                    error.message, param=f"{path}[{index}].source.data", code="invalid_skill"
                ) from None


def skills_prompt(skills: Iterable[SkillSummary]) -> str:
    """Return the text that tells the model about the skills of its container. The text is empty if
    there are no skills."""
    return _skills_prompt(
        (skill.name, f"{SKILLS_FOLDER}/{skill.name}", skill.description) for skill in skills
    )


def local_skills_prompt(skills: Iterable[LocalSkill]) -> str:
    """Return the text that tells the model about the skills on the client's machine."""
    return _skills_prompt((skill.name, skill.path, skill.description) for skill in skills)


def _skills_prompt(skills: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        f"- {name} ({path}/SKILL.md): {' '.join(about.split())}" for name, path, about in skills
    ]
    return "\n".join(["", _PROMPT, *lines]) if lines else ""


async def _stored_skill(
    library: SkillLibrary, tenant: str, skill: SkillReference, path: str
) -> ContainerSkill:
    try:
        resolved = await library.retrieve_version(tenant, skill.skill_id, skill.version)
    except NotFound as error:
        field = "version" if error.param == "version" else "skill_id"
        raise InvalidRequest(error.message, param=f"{path}.{field}", code=error.code) from None
    return ContainerSkill(
        name=resolved.name,
        description=resolved.description,
        key=f"{resolved.skill_id} {resolved.version}",
        source=SkillReference(skill_id=resolved.skill_id, version=resolved.version),
        load=partial(library.read_bundle, tenant, resolved.skill_id, resolved.version),
    )


def _inline_skill(skill: InlineSkill, path: str) -> ContainerSkill:
    try:
        content = b64decode(skill.source.data, validate=True)
    except ValueError:
        raise InvalidRequest(
            "The skill is not valid base64.", param=f"{path}.source.data", code="invalid_value"
        ) from None

    async def load() -> bytes:
        return content

    return ContainerSkill(
        name=skill.name,
        description=skill.description,
        key=sha256(content).hexdigest(),
        source=skill,
        load=load,
    )
