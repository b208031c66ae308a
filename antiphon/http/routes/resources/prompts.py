"""Endpoints of ``/v1/prompts``: the operator's stored prompts.

Clients need an API key that is listed in the setting ``prompt_editors``. On a server without keys,
only clients on this machine may use these endpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.http.openapi.operation import Permission, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import read_query
from antiphon.limits.requests import RequestLimits
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.requests import parse_create_prompt
from antiphon.wire.resources.prompts import CreatePrompt, PromptResource

if TYPE_CHECKING:
    from antiphon.runs.service import Service
_ALLOWED = Permission(("prompt_editor",), "read or change the prompts")


class PromptVersion(Struct, frozen=True, kw_only=True):
    version: Annotated[str | None, Meta(description="Only this version of the prompt.")] = None


class PromptRoutes:
    """All routes below ``/v1/prompts``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._prompts = service.prompts
        self._limits = limits

    @operation(
        "POST /v1/prompts", "createPrompt", body=CreatePrompt, permission=_ALLOWED, errors=(404,)
    )
    async def create(self, request: Request) -> PromptResource:
        """Create a prompt, or a new version of an existing prompt."""
        parsed = await bodies.parse(request, self._limits, parse_create_prompt)
        return await self._prompts.create(parsed)

    @operation("GET /v1/prompts", "listPrompts", permission=_ALLOWED)
    async def list(self, request: Request) -> Page[PromptResource]:
        """List all prompts without their templates."""
        return await self._prompts.list()

    @operation("GET /v1/prompts/{prompt_id}", "getPrompt", query=PromptVersion, permission=_ALLOWED)
    async def retrieve(self, request: Request) -> PromptResource:
        """Return a version of a prompt. The default is the newest version."""
        return await self._prompts.retrieve(*_prompt_key(request))

    @operation(
        "DELETE /v1/prompts/{prompt_id}", "deletePrompt", query=PromptVersion, permission=_ALLOWED
    )
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a prompt, or one of its versions. If the request names no version, all versions
        are deleted."""
        prompt_id, version = _prompt_key(request)
        await self._prompts.delete(prompt_id, version)
        return DeletedObject(id=prompt_id, object="prompt.deleted")


def _prompt_key(request: Request) -> tuple[str, str | None]:
    """Return the prompt id in the path of a request, and the prompt version in its query. The
    version is None if the query contains no version."""
    return request.path_params["prompt_id"], read_query(request, PromptVersion).version
