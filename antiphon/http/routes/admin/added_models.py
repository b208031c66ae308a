"""Endpoints of ``/antiphon/added-models``: operators add models while the server runs, change their
options and remove them. ``/antiphon/found-models`` searches models that can be added.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.errors import Forbidden, NotFound
from antiphon.http.auditor import Auditor
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import read_query
from antiphon.limits.requests import RequestLimits
from antiphon.wire.admin.added_models import (
    AddedModel,
    AddedModelList,
    AddModel,
    FoundModelList,
    ModelOptions,
)
from antiphon.wire.pagination import DeletedObject
from antiphon.wire.parsing.fields import convert, known_fields
from antiphon.wire.parsing.json_body import parse_json_object

from .managed_models import MANAGE_MODELS, ModelAdministration

_BodyT = TypeVar("_BodyT", bound=ModelOptions)


class ModelSearch(Struct, frozen=True, kw_only=True):
    query: Annotated[str, Meta(description="Text to search for.")] = ""


class ModelAdditions(Protocol):
    """The interface that adds, changes and removes models. Its methods raise ``RequestError``."""

    async def list(self) -> AddedModelList:
        """Return the added models."""

    async def add(self, wanted: AddModel) -> AddedModel:
        """Add a model."""

    async def change(self, name: str, options: ModelOptions) -> AddedModel:
        """Replace the options of an added model."""

    async def remove(self, name: str) -> None:
        """Remove an added model."""

    async def search(self, text: str) -> FoundModelList:
        """Search models that can be added."""


class AddedModelRoutes:
    """All routes below ``/antiphon/added-models``, and ``/antiphon/found-models``."""

    def __init__(
        self,
        additions: ModelAdditions,
        manager: ModelAdministration,
        limits: RequestLimits,
        auditor: Auditor,
    ) -> None:
        self._additions = additions
        self._manager = manager
        self._limits = limits
        self._auditor = auditor

    @operation("GET /antiphon/added-models", "listAddedModels", permission=MANAGE_MODELS)
    async def list(self, request: Request) -> AddedModelList:
        """List the models that operators have added, with their options."""
        return await self._additions.list()

    @operation(
        "GET /antiphon/found-models", "searchModels", query=ModelSearch, permission=MANAGE_MODELS
    )
    async def search(self, request: Request) -> FoundModelList:
        """List models that can be added: those that Antiphon suggests, and, with a text to search
        for, repositories of Hugging Face."""
        return await self._additions.search(read_query(request, ModelSearch).query)

    @operation(
        "POST /antiphon/added-models",
        "addModel",
        body=AddModel,
        permission=MANAGE_MODELS,
        errors=(409,),
    )
    async def add(self, request: Request) -> AddedModel:
        """Add a model from Hugging Face. It is downloaded and loaded at the first request for
        it, or with `POST /antiphon/models/{model}/load`."""
        added = await self._additions.add(await self._read(request, AddModel))
        await self._auditor.record(request.scope, "model.added", added.id)
        return added

    @operation(
        "POST /antiphon/added-models/{model:path}",
        "changeModel",
        body=ModelOptions,
        permission=MANAGE_MODELS,
    )
    async def change(self, request: Request) -> AddedModel:
        """Replace the options of an added model. The next request loads it again."""
        options = await self._read(request, ModelOptions)
        changed = await self._additions.change(request.path_params["model"], options)
        await self._auditor.record(request.scope, "model.changed", changed.id)
        return changed

    @operation(
        "DELETE /antiphon/added-models/{model:path}", "removeModel", permission=MANAGE_MODELS
    )
    async def remove(self, request: Request) -> DeletedObject:
        """Remove an added model and its downloaded files, when its requests have finished."""
        name = request.path_params["model"]
        if any(each.id == name for each in (await self._additions.list()).data):
            with suppress(Forbidden, NotFound):  # nothing is downloaded yet
                await self._manager.delete(name)
        await self._additions.remove(name)
        await self._auditor.record(request.scope, "model.removed", name)
        return DeletedObject(id=name, object="model")

    async def _read(self, request: Request, kind: type[_BodyT]) -> _BodyT:
        raw = await bodies.parse(request, self._limits, parse_json_object)
        return convert(known_fields(raw, kind.__struct_fields__, ""), kind, "")
