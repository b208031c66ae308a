"""Endpoints of ``/v1/skills``. Clients of the Messages API get skills in Anthropic's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.compat.messages.files import PageToken, next_page, page_cursor
from antiphon.compat.messages.skills import (
    DeletedMessageSkill,
    DeletedMessageSkillVersion,
    MessageSkill,
    MessageSkillPage,
    MessageSkillVersion,
    MessageSkillVersionPage,
    message_version_page,
)
from antiphon.http.json_response import Reply
from antiphon.http.openapi.operation import Form, messages_handler, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.http.requests.query import object_key, path_param, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.resources.skills import MAX_UPLOAD_BYTES, MAX_UPLOAD_FILES
from antiphon.wire.cursors import PageEnd, PageOrder, PageParams, PageStart
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.errors import out_of_range
from antiphon.wire.parsing.fields import body_parser, convert
from antiphon.wire.parsing.text_fields import read_texts
from antiphon.wire.resources.skills import (
    DefaultVersion,
    DeletedSkillVersion,
    Skill,
    SkillVersion,
    SkillVersionForm,
)

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_SKILL = "/v1/skills/{skill_id}"
_VERSION = _SKILL + "/versions/{version}"
_skill_key = object_key("skill_id")
_version = path_param("version")
#: The largest pages of both APIs.
_LIMIT, _MESSAGES_LIMIT = 100, 1_000


class VersionListing(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        int,
        Meta(ge=1, le=_MESSAGES_LIMIT),
        Meta(
            description=(
                "The largest number of entries. Above 100 only for clients of Anthropic's API."
            )
        ),
    ] = 20
    order: PageOrder = "desc"
    after: PageStart = None
    before: PageEnd = None
    page: PageToken = None


class SkillListing(VersionListing, frozen=True, kw_only=True):
    source: Annotated[
        str | None,
        Meta(
            description="For clients of Anthropic's API: all skills here have the source `custom`."
        ),
    ] = None


class SkillRoutes:
    """All routes below ``/v1/skills``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._skills = service.skills
        self._limits = limits

    @operation("POST /v1/skills", "createSkill", form=Form(file="files", has_many_files=True))
    async def create(self, request: Request) -> Skill:
        """Create a skill from a form that contains files with their paths, or one zip."""
        return await self._skills.create(tenant_of(request), _files(await self._form(request)))

    @messages_handler(create)
    async def create_for_messages(self, request: Request) -> MessageSkill:
        (skill,) = await self._message_skills(request, [await self.create(request)])
        return skill

    @operation("GET /v1/skills", "listSkills", query=SkillListing)
    async def list(self, request: Request) -> Page[Skill]:
        """Return a page of the tenant's skills, by default newest first."""
        query = read_query(request, SkillListing)
        return await self._skills.list(tenant_of(request), _page_params(query))

    @messages_handler(list)
    async def list_for_messages(self, request: Request) -> MessageSkillPage:
        query = read_query(request, SkillListing)
        page = await self._skills.list(tenant_of(request), _page_params(query, _MESSAGES_LIMIT))
        if query.source not in (None, "custom"):
            return MessageSkillPage(data=())
        data = await self._message_skills(request, page.data)
        return MessageSkillPage(data=data, next_page=next_page(page))

    @operation(f"GET {_SKILL}", "getSkill")
    async def retrieve(self, request: Request) -> Skill:
        """Return a skill, with its default and latest version."""
        return await self._skills.retrieve(*_skill_key(request))

    @messages_handler(retrieve)
    async def retrieve_for_messages(self, request: Request) -> MessageSkill:
        (skill,) = await self._message_skills(request, [await self.retrieve(request)])
        return skill

    @operation(f"POST {_SKILL}", "updateSkill", body=DefaultVersion)
    async def update(self, request: Request) -> Skill:
        """Set the default version of a skill."""
        body = await bodies.parse(request, self._limits, body_parser(DefaultVersion))
        skill = self._skills.set_default_version(*_skill_key(request), body.default_version)
        return await skill

    @operation(f"DELETE {_SKILL}", "deleteSkill", messages=DeletedMessageSkill.of)
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a skill."""
        tenant, skill_id = _skill_key(request)
        await self._skills.delete(tenant, skill_id)
        return DeletedObject(id=skill_id, object="skill.deleted")

    @operation(f"GET {_SKILL}/content", "getSkillContent", media_type="application/zip")
    async def read_content(self, request: Request) -> Reply:
        """Return the files of the skill's default version as a zip."""
        return _zip(await self._skills.read_bundle(*_skill_key(request)))

    @operation(
        f"POST {_SKILL}/versions",
        "createSkillVersion",
        form=Form(file="files", has_many_files=True, fields=SkillVersionForm),
    )
    async def add_version(self, request: Request) -> SkillVersion:
        """Create a version of a skill from the files in a form. For clients of Anthropic's API, it
        becomes the default version."""
        return await self._add_version(request)

    @messages_handler(add_version)
    async def add_version_for_messages(self, request: Request) -> MessageSkillVersion:
        return MessageSkillVersion.of(await self._add_version(request, is_default=True))

    async def _add_version(self, request: Request, *, is_default: bool = False) -> SkillVersion:
        key = _skill_key(request)
        await self._skills.retrieve(*key)
        form = await self._form(request)
        fields = convert(read_texts(form.fields.items(), SkillVersionForm), SkillVersionForm, "")
        return await self._skills.add_version(
            *key, _files(form), default=fields.default or is_default
        )

    @operation(f"GET {_SKILL}/versions", "listSkillVersions", query=VersionListing)
    async def list_versions(self, request: Request) -> Page[SkillVersion]:
        """Return a page of a skill's versions, by default newest first."""
        params = _page_params(read_query(request, VersionListing))
        return await self._skills.list_versions(*_skill_key(request), params)

    @messages_handler(list_versions)
    async def list_versions_for_messages(self, request: Request) -> MessageSkillVersionPage:
        params = _page_params(read_query(request, VersionListing), _MESSAGES_LIMIT)
        return message_version_page(await self._skills.list_versions(*_skill_key(request), params))

    @operation(f"GET {_VERSION}", "getSkillVersion", messages=MessageSkillVersion.of)
    async def retrieve_version(self, request: Request) -> SkillVersion:
        """Return a version of a skill without its files."""
        return await self._skills.retrieve_version(*_skill_key(request), _version(request))

    @operation(f"DELETE {_VERSION}", "deleteSkillVersion")
    async def delete_version(self, request: Request) -> DeletedSkillVersion:
        """Delete a version of a skill. Clients of Anthropic's API can also delete the default
        version."""
        deleted = await self._skills.delete_version(*_skill_key(request), _version(request))
        return DeletedSkillVersion(id=deleted.id, version=deleted.version)

    @messages_handler(delete_version)
    async def delete_version_for_messages(self, request: Request) -> DeletedMessageSkillVersion:
        deleted = await self._skills.delete_version(
            *_skill_key(request), _version(request), moves_default=True
        )
        return DeletedMessageSkillVersion(deleted.version)

    @operation(f"GET {_VERSION}/content", "getSkillVersionContent", media_type="application/zip")
    async def read_version_content(self, request: Request) -> Reply:
        """Return the files of a skill's version as a zip."""
        return _zip(await self._skills.read_bundle(*_skill_key(request), _version(request)))

    async def _message_skills(
        self, request: Request, skills: Iterable[Skill]
    ) -> tuple[MessageSkill, ...]:
        latest = await self._skills.latest_versions(tenant_of(request))
        return tuple(MessageSkill.of(each, latest.get(each.id, each).created_at) for each in skills)

    async def _form(self, request: Request) -> multipart.FilesForm:
        limit = min(self._limits.max_file_bytes, MAX_UPLOAD_BYTES)
        return await multipart.read_files(
            request.scope, request.receive, file="files", limit=limit, max_files=MAX_UPLOAD_FILES
        )


def _page_params(query: VersionListing, most: int = _LIMIT) -> PageParams:
    if query.limit > most:
        raise out_of_range("limit", "integer", query.limit, "<=", str(most))
    after = query.after or page_cursor(query.page)
    return PageParams(limit=query.limit, order=query.order, after=after, before=query.before)


def _files(form: multipart.FilesForm) -> Mapping[str, bytes]:
    """Return the files of a form: path → content.

    If two files have the same path, ``./`` is put in front of the path of the later file. The
    validation of skills then refuses this path, so the client gets an error.
    """
    found: dict[str, bytes] = {}
    for path, content in form.files:
        found[path if path not in found else f"./{path}"] = content
    return found


def _zip(content: bytes) -> Reply:
    """Return a response that sends a zip as a download. The headers make browsers save the zip, and
    not render its content."""
    headers = {
        "content-disposition": "attachment; filename=skill.zip",
        "x-content-type-options": "nosniff",
    }
    return Reply(content, headers=headers, media_type="application/zip")
