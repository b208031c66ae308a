"""Skills: bundles of instructions and scripts that clients upload for use in containers.

Skills of other tenants are reported as not found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from antiphon.attachments.skill_bundles import (
    DEFAULT_LIMITS,
    Bundle,
    BundleFile,
    InvalidBundle,
    make_bundle,
    pack,
    unpack,
)
from antiphon.errors import InvalidRequest, NotFound
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas, check_size
from antiphon.limits.refusals import quota_exceeded
from antiphon.store.base import Store
from antiphon.store.skills import SkillDraft
from antiphon.stream.writer import Ids
from antiphon.wire.cursors import PageParams, make_page
from antiphon.wire.pagination import Page
from antiphon.wire.resources.skills import Skill, SkillVersion

#: Largest total size of an uploaded skill in bytes, and largest number of its files.
MAX_UPLOAD_BYTES, MAX_UPLOAD_FILES = DEFAULT_LIMITS.total_bytes, DEFAULT_LIMITS.file_count

_ZIP = b"PK\x03\x04"


class Skills:
    """Operations on skills. Methods that take an id raise ``NotFound`` for an unknown id.

    ``quotas`` limit the total size of a tenant's skills, in bytes.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        ids: Ids,
        quotas: TenantQuotas = NO_QUOTAS,
    ) -> None:
        self._skills = store.skills
        self._clock = clock
        self._ids = ids
        self._quotas = quotas

    async def create(self, tenant: str, files: Mapping[str, bytes]) -> Skill:
        """Store a new skill. ``files``: path → content of the file. The skill is uploaded either as
        separate files or as one zip file. Raises ``InvalidRequest``, ``TooLarge`` and
        ``QuotaExceeded``."""
        draft, content = await self._make_draft(self._ids("skill"), files)
        max_bytes = self._max_bytes(tenant, content)
        if not await self._skills.create(tenant, draft, content, max_bytes=max_bytes):
            raise quota_exceeded("skills", param="files", max_files_bytes=max_bytes)
        return await self.retrieve(tenant, draft.skill_id)

    async def retrieve(self, tenant: str, skill_id: str) -> Skill:
        """Return a skill."""
        found = await self._skills.get(tenant, skill_id)
        if found is None:
            raise _not_found(skill_id)
        return found

    async def list(self, tenant: str, params: PageParams) -> Page[Skill]:
        """Return a page of skills. Raises ``InvalidRequest`` if the cursor is not the id of a
        skill."""
        return make_page(await self._skills.list_skills(tenant), params)

    async def set_default_version(self, tenant: str, skill_id: str, version: str) -> Skill:
        """Set the default version of a skill. Raises ``InvalidRequest`` if the version does not
        exist."""
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
        """Delete a skill and all its versions."""
        if not await self._skills.delete(tenant, skill_id):
            raise _not_found(skill_id)

    # --- versions --------------------------------------------------------------------------------

    async def add_version(
        self, tenant: str, skill_id: str, files: Mapping[str, bytes], *, default: bool
    ) -> SkillVersion:
        """Store a new version of a skill. ``default``: whether the new version becomes the default
        version. Raises ``InvalidRequest``, ``TooLarge`` and ``QuotaExceeded``."""
        await self.retrieve(tenant, skill_id)
        draft, content = await self._make_draft(skill_id, files)
        max_bytes = self._max_bytes(tenant, content)
        created = await self._skills.add_version(
            tenant, draft, content, default=default, max_bytes=max_bytes
        )
        if created is None:
            await self.retrieve(tenant, skill_id)
            raise quota_exceeded("skills", param="files", max_files_bytes=max_bytes)
        return created

    async def list_versions(
        self, tenant: str, skill_id: str, params: PageParams
    ) -> Page[SkillVersion]:
        """Return a page of a skill's versions. Raises ``InvalidRequest`` if the cursor is not the
        id of a version.
        """
        await self.retrieve(tenant, skill_id)
        return make_page(await self._skills.list_versions(tenant, skill_id), params)

    async def latest_versions(self, tenant: str) -> Mapping[str, SkillVersion]:
        """Return the newest version of each skill of a tenant: id of the skill → version."""
        return await self._skills.latest_versions(tenant)

    async def retrieve_version(
        self, tenant: str, skill_id: str, version: str | None = None
    ) -> SkillVersion:
        """Return a version of a skill. ``version``: the number of the version, or ``latest``. None
        means the default version."""
        skill = await self.retrieve(tenant, skill_id)
        aliases = {None: skill.default_version, "latest": skill.latest_version}
        wanted = aliases.get(version, version)
        for found in await self._skills.list_versions(tenant, skill_id):
            if found.version == wanted:
                return found
        raise _version_not_found(skill_id, str(version))

    async def read_bundle(self, tenant: str, skill_id: str, version: str | None = None) -> bytes:
        """Return the files of a version as a zip with one top-level folder."""
        found = await self.retrieve_version(tenant, skill_id, version)
        content = await self._skills.read_bundle(tenant, skill_id, _number(found.version))
        if content is None:  # deleted in the meantime
            raise _version_not_found(skill_id, found.version)
        return content

    async def delete_version(
        self, tenant: str, skill_id: str, version: str, *, moves_default: bool = False
    ) -> SkillVersion:
        """Delete a version of a skill. If the skill has no other version, delete the skill too.
        ``moves_default``: if it is the default version, make the newest other one the default.

        Raises ``InvalidRequest`` if the version is the default version and the skill has other
        versions.
        """
        found = await self.retrieve_version(tenant, skill_id, version)
        if moves_default:
            await self._move_default(tenant, skill_id, found.version)
        if not await self._skills.delete_version(tenant, skill_id, _number(found.version)):
            raise InvalidRequest(
                f"Version '{found.version}' is the default of skill '{skill_id}'. Set another"
                " default version first.",
                param="version",
                code="invalid_value",
            )
        return found

    async def _move_default(self, tenant: str, skill_id: str, version: str) -> None:
        """If a version is the default one, make the newest other version the default, if any."""
        skill = await self.retrieve(tenant, skill_id)
        others = [
            each.version
            for each in await self._skills.list_versions(tenant, skill_id)
            if each.version != version
        ]
        if others and skill.default_version == version:
            await self._skills.set_default_version(tenant, skill_id, _number(others[-1]))

    async def _make_draft(
        self, skill_id: str, files: Mapping[str, bytes]
    ) -> tuple[SkillDraft, bytes]:
        try:
            bundle, content = await asyncio.to_thread(_make_bundle, files)
        except InvalidBundle as error:
            raise InvalidRequest(str(error), param="files", code="invalid_skill") from None
        draft = SkillDraft(
            id=self._ids("skillver"),
            skill_id=skill_id,
            created_at=int(self._clock()),
            name=bundle.name,
            description=bundle.description,
        )
        return draft, content

    def _max_bytes(self, tenant: str, content: bytes) -> int | None:
        """Return the maximum total size of a tenant's skills in bytes. Returns None if there is no
        limit. Raises ``TooLarge`` if ``content`` alone exceeds this size."""
        limit = self._quotas.for_tenant(tenant).max_files_bytes
        check_size(len(content), limit, param="files")
        return limit


def _make_bundle(files: Mapping[str, bytes]) -> tuple[Bundle, bytes]:
    """Validate an uploaded skill (its files or one zip file). Returns the skill as a ``Bundle``,
    and a new zip file with the files of the bundle."""
    first = next(iter(files.values()), b"")
    is_zip = len(files) == 1 and first.startswith(_ZIP)
    members = unpack(first) if is_zip else {name: BundleFile(each) for name, each in files.items()}
    bundle = make_bundle(members)
    return bundle, pack(bundle)


def _number(version: str) -> int:
    """Convert the version in a request to a version number. If ``version`` is not a number, return
    0, because versions begin with 1."""
    return int(version) if version.isdecimal() and version.isascii() and len(version) < 10 else 0


def _not_found(skill_id: str) -> NotFound:
    return NotFound(f"Skill with id '{skill_id}' not found.", param="skill_id")


def _version_not_found(skill_id: str, version: str) -> NotFound:
    return NotFound(f"Skill '{skill_id}' has no version '{version[:20]}'.", param="version")
