"""Skills: what clients keep here for the containers of their tools. It knows neither HTTP nor
containers.

Whoever is not the tenant of a skill finds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from antiphon.attachments.skill_bundles import (
    BOUNDS,
    BadBundle,
    Bundle,
    Member,
    bundled,
    packed,
    unpacked,
)
from antiphon.errors import InvalidRequest, NotFound
from antiphon.pagination import Cut, page
from antiphon.store.base import Store
from antiphon.store.skills import SkillDraft
from antiphon.stream.writer import Ids
from antiphon.wire.pagination import Page
from antiphon.wire.skills import Skill, SkillVersion

__all__ = ["MOST_BYTES", "MOST_FILES", "Skills"]

#: Of an upload.
MOST_BYTES, MOST_FILES = BOUNDS.unpacked, BOUNDS.files

_ZIP = b"PK\x03\x04"


class Skills:
    """What can be asked about skills; unless told otherwise, methods raise ``NotFound`` for unknown
    ids and versions. ``most``: bytes of all bundles of a tenant; None = no limit."""

    def __init__(
        self, store: Store, *, clock: Callable[[], float], ids: Ids, most: int | None = None
    ) -> None:
        self._skills = store.skills
        self._clock = clock
        self._ids = ids
        self._most = most

    async def create(self, tenant: str, files: Mapping[str, bytes]) -> Skill:
        """Keep a new one, of files by their paths, or of one zip. Raises ``InvalidRequest``."""
        draft, content = await self._drafted(self._ids("skill"), files)
        if not await self._skills.create(tenant, draft, content, max_bytes=self._most):
            raise self._full()
        return await self.retrieve(tenant, draft.skill_id)

    async def retrieve(self, tenant: str, skill_id: str) -> Skill:
        """As it is now."""
        found = await self._skills.get(tenant, skill_id)
        if found is None:
            raise _unknown(skill_id)
        return found

    async def list(self, tenant: str, cut: Cut) -> Page[Skill]:
        """A page. Raises ``InvalidRequest`` for a cursor that is no skill."""
        return page(await self._skills.list_skills(tenant), cut)

    async def choose(self, tenant: str, skill_id: str, version: str) -> Skill:
        """Make a version the default. Raises ``InvalidRequest`` if there is no such version."""
        skill = await self.retrieve(tenant, skill_id)
        number = skill.latest_version if version == "latest" else version
        if not await self._skills.set_default_version(tenant, skill_id, _number(number)):
            raise InvalidRequest(
                f"Skill '{skill_id}' has no version '{version[:20]}'.",
                param="default_version",
                code="invalid_value",
            )
        return await self.retrieve(tenant, skill_id)

    async def delete(self, tenant: str, skill_id: str) -> None:
        """For good, with all its versions."""
        if not await self._skills.delete(tenant, skill_id):
            raise _unknown(skill_id)

    # --- versions --------------------------------------------------------------------------------

    async def add(
        self, tenant: str, skill_id: str, files: Mapping[str, bytes], *, default: bool
    ) -> SkillVersion:
        """Keep a new version, as the default if that is wanted. Raises ``InvalidRequest``."""
        await self.retrieve(tenant, skill_id)
        draft, content = await self._drafted(skill_id, files)
        made = await self._skills.add_version(
            tenant, draft, content, default=default, max_bytes=self._most
        )
        if made is None:
            await self.retrieve(tenant, skill_id)
            raise self._full()
        return made

    async def versions(self, tenant: str, skill_id: str, cut: Cut) -> Page[SkillVersion]:
        """A page. Raises ``InvalidRequest`` for a cursor that is no version."""
        await self.retrieve(tenant, skill_id)
        return page(await self._skills.list_versions(tenant, skill_id), cut)

    async def version(self, tenant: str, skill_id: str, version: str | None = None) -> SkillVersion:
        """One, by its number; ``latest``; None: the default."""
        skill = await self.retrieve(tenant, skill_id)
        named = {None: skill.default_version, "latest": skill.latest_version}
        wanted = named.get(version, version)
        for found in await self._skills.list_versions(tenant, skill_id):
            if found.version == wanted:
                return found
        raise _no_version(skill_id, str(version))

    async def bundle(self, tenant: str, skill_id: str, version: str | None = None) -> bytes:
        """The files of a version as a zip, in one folder."""
        found = await self.version(tenant, skill_id, version)
        content = await self._skills.read_bundle(tenant, skill_id, _number(found.version))
        if content is None:  # deleted in this moment
            raise _no_version(skill_id, found.version)
        return content

    async def delete_version(self, tenant: str, skill_id: str, version: str) -> SkillVersion:
        """For good; with the last one goes the skill. Raises ``InvalidRequest`` for the default
        while there are others."""
        found = await self.version(tenant, skill_id, version)
        if not await self._skills.delete_version(tenant, skill_id, _number(found.version)):
            raise InvalidRequest(
                f"Version '{found.version}' is the default of skill '{skill_id}': make another one"
                " the default first.",
                param="version",
                code="invalid_value",
            )
        return found

    async def _drafted(self, skill_id: str, files: Mapping[str, bytes]) -> tuple[SkillDraft, bytes]:
        try:
            bundle, content = await asyncio.to_thread(_bundled, files)
        except BadBundle as error:
            raise InvalidRequest(str(error), param="files", code="invalid_skill") from None
        draft = SkillDraft(
            id=self._ids("skillver"),
            skill_id=skill_id,
            created_at=int(self._clock()),
            name=bundle.name,
            description=bundle.description,
        )
        return draft, content

    def _full(self) -> InvalidRequest:
        return InvalidRequest(
            f"There is no room for this skill: all skills together may hold {self._most} bytes."
            " Delete some and try again.",
            param="files",
            code="storage_limit_exceeded",
        )


def _bundled(files: Mapping[str, bytes]) -> tuple[Bundle, bytes]:
    """What is kept of an upload: a zip of our own making, whatever came."""
    first = next(iter(files.values()), b"")
    is_zip = len(files) == 1 and first.startswith(_ZIP)
    members = unpacked(first) if is_zip else {name: Member(each) for name, each in files.items()}
    bundle = bundled(members)
    return bundle, packed(bundle)


def _number(version: str) -> int:
    """Of a version; 0, which none has, for what is no number."""
    return int(version) if version.isdecimal() and version.isascii() and len(version) < 10 else 0


def _unknown(skill_id: str) -> NotFound:
    return NotFound(f"Skill with id '{skill_id}' not found.", param="skill_id")


def _no_version(skill_id: str, version: str) -> NotFound:
    return NotFound(f"Skill '{skill_id}' has no version '{version[:20]}'.", param="version")
