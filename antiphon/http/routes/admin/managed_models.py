"""Endpoints of ``/antiphon/models``: operators load, unload and download models.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.requests import Request

from antiphon.http.auditor import Auditor
from antiphon.http.openapi.operation import Permission, operation
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.response import StreamFormat
from antiphon.http.streaming.task_stream import TaskStream, pull_failure
from antiphon.wire.admin.managed_models import ManagedModel, ManagedModelList, PullEvent
from antiphon.wire.pagination import DeletedObject

_MODEL = "/antiphon/models/{model:path}"
MANAGE_MODELS = Permission(("operator",), "manage the models")


class ModelAdministration(Protocol):
    """The interface that loads, unloads and downloads the served models."""

    async def list(self) -> ManagedModelList: ...
    async def retrieve(self, name: str) -> ManagedModel: ...
    async def load(self, name: str) -> ManagedModel:
        """Load a model. Returns when the model is loaded. Raises ``RequestError``."""

    async def unload(self, name: str) -> ManagedModel:
        """Unload a model. Returns when its running requests have finished. Raises
        ``RequestError``."""

    async def delete(self, name: str) -> ManagedModel:
        """Unload a model and delete its downloaded files. Raises ``RequestError``."""

    def pull(self, name: str) -> AsyncGenerator[PullEvent, None]:
        """Download the files of a model, and yield the events of the download. Raises
        ``RequestError``."""


class ManagedModelRoutes:
    """All routes below ``/antiphon/models``."""

    def __init__(self, manager: ModelAdministration, keepalive_s: float, auditor: Auditor) -> None:
        self._auditor = auditor
        self._manager = manager
        self._keepalive_s = keepalive_s

    @operation("GET /antiphon/models", "listManagedModels", permission=MANAGE_MODELS)
    async def list(self, request: Request) -> ManagedModelList:
        """List all models with their states and the memory that they use."""
        return await self._manager.list()

    @operation(f"GET {_MODEL}", "getManagedModel", permission=MANAGE_MODELS)
    async def retrieve(self, request: Request) -> ManagedModel:
        """Return one model."""
        return await self._manager.retrieve(request.path_params["model"])

    @operation(f"POST {_MODEL}/load", "loadModel", is_action=True, permission=MANAGE_MODELS)
    async def load(self, request: Request) -> ManagedModel:
        """Load a model; the response is sent when the model is loaded."""
        async with CancelOnDisconnect(request.scope, request.receive):
            model = await self._manager.load(request.path_params["model"])
        await self._auditor.record(request.scope, "model.loaded", model.id)
        return model

    @operation(f"POST {_MODEL}/unload", "unloadModel", is_action=True, permission=MANAGE_MODELS)
    async def unload(self, request: Request) -> ManagedModel:
        """Unload a model; the response is sent when the requests to the model have finished."""
        async with CancelOnDisconnect(request.scope, request.receive):
            model = await self._manager.unload(request.path_params["model"])
        await self._auditor.record(request.scope, "model.unloaded", model.id)
        return model

    @operation(
        f"POST {_MODEL}/pull",
        "pullModel",
        is_action=True,
        media_type="text/event-stream",
        events=PullEvent,
        permission=MANAGE_MODELS,
    )
    async def pull(self, request: Request) -> TaskStream:
        """Download the files of a model; the response is a stream of events."""
        name = request.path_params["model"]
        events = self._manager.pull(name)
        await self._auditor.record(request.scope, "model.pulled", name)
        return TaskStream(
            events, self._keepalive_s, stream_format=StreamFormat(), failure=pull_failure
        )

    @operation("DELETE /v1/models/{model:path}", "deleteModel", permission=MANAGE_MODELS)
    async def delete(self, request: Request) -> DeletedObject:
        """Delete the downloaded files of a model, which stays in the settings."""
        name = request.path_params["model"]
        model = await self._manager.delete(name)
        await self._auditor.record(request.scope, "model.deleted", model.id)
        return DeletedObject(id=name, object="model")
