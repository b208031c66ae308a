"""Backends for hosted models. A hosted model runs in one process of the server, the host, for all
worker processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog

from antiphon.audio.hosted import HostedTranscriber
from antiphon.backends.base import Backend, Reply, Status
from antiphon.backends.on_demand import (
    OnDemandBackend,
    OnDemandReply,
    Prepare,
    ProgressCallback,
)
from antiphon.backends.reading import EmbeddingBackend, TranscriptionBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.hosted import EmbedderDescription, HostedEmbedder
from antiphon.engines.hosted.engine import EngineDescription, hosted_engine
from antiphon.errors import AntiphonError, EngineLost
from antiphon.inference.sampling import SessionSignal
from antiphon.ipc.blocking_client import BlockingClient
from antiphon.ipc.client import CallClient
from antiphon.support.tasks import repeat, running
from antiphon.wire.admin.managed_models import ManagedModel, ManagedModelList, PullEvent

from .factories import REMOTE_ENGINES, TASKS_OF_ENGINES, local_backend
from .manager import ManagingAction

_log = structlog.get_logger(__name__)

#: Engines whose models need no memory in this server, because they run on another server or have no
#: model. Each worker process has its own backend for them.
_UNSHARED_ENGINES = (*REMOTE_ENGINES, "scripted", "speech_program")
#: Seconds that a call waits until the host has restarted, and seconds between two attempts to
#: follow the states of its models.
_HOST_WAIT_S, _RETRY_S = 30.0, 0.5


def is_hosted(model: Model) -> bool:
    """Return whether the model is hosted: one process of the server runs it for all workers."""
    return model.engine not in _UNSHARED_ENGINES


class HostedModels:
    """A worker's access to the models that run in the host process. ``path``: the Unix socket on
    which the host listens. Create an instance with ``open``.

    ``calls``: RPC client for coroutines. ``blocking``: RPC client whose calls block the thread.
    """

    def __init__(self, path: Path) -> None:
        self.calls = CallClient(path, on_lost=EngineLost, wait_s=_HOST_WAIT_S)
        self.blocking = BlockingClient(path, on_lost=EngineLost)
        self._statuses: Mapping[str, Status] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[HostedModels]:
        """Connect to the host (the process that runs the hosted models). Until the block ends, the
        yielded instance follows the states of the host's models."""
        models = cls(path)
        failure = "the states of hosted models are unknown"
        try:
            async with running(repeat(models._follow, _RETRY_S, failure=failure)):
                yield models
        finally:
            models.calls.close()
            models.blocking.close()

    def backend(self, name: str, model: Model, settings: Settings) -> HostedBackend:
        """Build the backend with which this process uses a hosted model."""
        make: Callable[[ProgressCallback], Awaitable[Backend]]
        match TASKS_OF_ENGINES.get(model.engine):
            case "embeddings":
                make = partial(self._embedding, name)
            case "transcription":
                make = partial(self._transcription, name)
            case _:
                make = partial(self._local, name, model, settings)
        return HostedBackend(self, name, make, context_size=model.context_size)

    def status(self, name: str) -> Status:
        """Return the state of a model in the host process, such as loaded or unloaded."""
        return self._statuses.get(name) or Status(value="unloaded")

    async def _local(
        self, name: str, model: Model, settings: Settings, progress: ProgressCallback
    ) -> Backend:
        description = await self.calls.call("describe_engine", name, returns=EngineDescription)
        engine = hosted_engine(name, description, self.calls, self.blocking)
        return await local_backend(engine, name, model, settings)

    async def _embedding(self, name: str, progress: ProgressCallback) -> Backend:
        description = await self.calls.call("describe_embedder", name, returns=EmbedderDescription)
        return EmbeddingBackend(name, HostedEmbedder(name, description, self.calls))

    async def _transcription(self, name: str, progress: ProgressCallback) -> Backend:
        await self.calls.call("manage_model", "load", name, returns=ManagedModel)
        return TranscriptionBackend(name, HostedTranscriber(name, self.calls))

    async def _follow(self) -> None:
        """Follow the states until the connection to the host is lost."""
        try:
            states = self.calls.stream("statuses", returns=dict[str, Status])
            async with aclosing(states):
                async for statuses in states:
                    self._statuses = statuses
        except AntiphonError:
            self._statuses = {}


class HostedBackend(OnDemandBackend):
    """The ``Backend`` of a hosted model. The host process loads and unloads the model.

    ``make``: function that builds the backend at its first use. For this, it requests the
    description of the model's engine from the host process.
    """

    def __init__(
        self,
        models: HostedModels,
        name: str,
        make: Callable[[ProgressCallback], Awaitable[Backend]],
        *,
        context_size: int | None,
    ) -> None:
        super().__init__(name, make, context_size=context_size)
        self._models = models

    async def _reply(self, prepare: Prepare) -> OnDemandReply:
        async def prepare_twice(backend: Backend) -> Reply:
            try:
                return await prepare(backend)
            except EngineLost:
                await self._models.calls.connect()  # waits until the host has been started again
                return await prepare(backend)

        return await super()._reply(prepare_twice)

    @property
    def status(self) -> Status:
        return self._models.status(self._name)

    async def on_session(self, signal: SessionSignal) -> None:
        """Tell the engine in the host process."""
        await self._models.calls.call("on_session", self._name, signal, returns=None)

    async def ready(self) -> bool:
        is_loaded = self.status.value == "loaded"
        if not is_loaded and not await self._models.calls.call("ready", self._name, returns=bool):
            return False
        return await super().ready()


class HostedModelManager:
    """Manages the served models by RPC calls to the host process. Its methods work like the methods
    of ``ModelManager``. ``calls``: the RPC client."""

    def __init__(self, calls: CallClient) -> None:
        self._calls = calls

    async def list(self) -> ManagedModelList:
        found: ManagedModelList = await self._calls.call("list_models", returns=ManagedModelList)
        return found

    async def retrieve(self, name: str) -> ManagedModel:
        return await self._manage("retrieve", name)

    async def load(self, name: str) -> ManagedModel:
        return await self._manage("load", name)

    async def unload(self, name: str) -> ManagedModel:
        return await self._manage("unload", name)

    async def delete(self, name: str) -> ManagedModel:
        return await self._manage("delete", name)

    def pull(self, name: str) -> AsyncGenerator[PullEvent, None]:
        return self._calls.stream("pull_model", name, returns=PullEvent)

    async def _manage(self, action: ManagingAction, name: str) -> ManagedModel:
        found: ManagedModel = await self._calls.call(
            "manage_model", action, name, returns=ManagedModel
        )
        return found
