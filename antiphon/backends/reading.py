"""Backends of models for one task, such as embeddings or reranking. They reject conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

from antiphon.audio.base import Speaker, Transcriber
from antiphon.embeddings.base import Embedder
from antiphon.embeddings.reranker import Reranker
from antiphon.errors import BackendError, unsupported_model
from antiphon.inference.conversation import Conversation, Options
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import connecting_model

from .base import Backend, Reply, Status, Task
from .on_demand import OnDemandBackend
from .remote.moderations import ModerationsApi

#: What a model for a task does, and where clients use it.
TASKS: Mapping[Task, str] = {
    "embeddings": "produces embeddings. Use it at /v1/embeddings",
    "moderation": "moderates. Use it at /v1/moderations, and in the field 'moderation'",
    "reranking": "reranks. Use it at /v1/rerank",
    "transcription": "writes down speech. Use it at /v1/audio/transcriptions",
    "speech": "reads texts aloud. Use it at /v1/audio/speech",
}


class _Worker(Protocol):
    async def close(self) -> None: ...


_WorkerT = TypeVar("_WorkerT", bound=_Worker)


class _TaskBackend(Backend):
    """Base class. It rejects every conversation."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    task: Task

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise unsupported_model(f"The model '{self._name}' only {TASKS[self.task]}.")


class TaskBackend(_TaskBackend, Generic[_WorkerT]):
    """``Backend`` of a loaded model for one task. ``worker``: what does the task with the model,
    such as an embedder. ``close`` also closes the worker."""

    def __init__(self, name: str, worker: _WorkerT) -> None:
        super().__init__(name)
        self._worker = worker

    @classmethod
    async def at_upstream(
        cls,
        worker: Callable[[Upstream, Mapping[str, object]], _WorkerT],
        name: str,
        url: str,
        *,
        key: str | None,
        model: str | None,
        options: Mapping[str, object],
    ) -> Self:
        """Return the backend of a model on another server. ``worker``: the worker's class. The
        other arguments are those of ``connecting_model``. Raises ``SetupError``."""
        async with connecting_model(name, url, key, model, options) as (upstream, body):
            return cls(name, worker(upstream, body))

    @asynccontextmanager
    async def use(self) -> AsyncIterator[_WorkerT]:
        """Async context manager that yields the worker. The worker stays loaded after the
        ``async with`` block, until the method ``close`` is called."""
        yield self._worker

    async def close(self) -> None:
        await self._worker.close()


class EmbeddingBackend(TaskBackend[Embedder]):
    """``Backend`` of a loaded embedding model."""

    task: Task = "embeddings"


class RerankBackend(TaskBackend[Reranker]):
    """``Backend`` of a loaded reranking model."""

    task: Task = "reranking"


class ModerationBackend(TaskBackend[ModerationsApi]):
    """``Backend`` of a moderator on another server."""

    task: Task = "moderation"


class TranscriptionBackend(TaskBackend[Transcriber]):
    """``Backend`` of a loaded model that writes down speech."""

    task: Task = "transcription"


class SpeechBackend(TaskBackend[Speaker]):
    """``Backend`` of a loaded model that reads texts aloud."""

    task: Task = "speech"


class OnDemandTaskBackend(_TaskBackend):
    """``Backend`` of a model for one task that is loaded when it is used and unloaded when it is
    idle."""

    def __init__(self, name: str, task: Task, on_demand: OnDemandBackend) -> None:
        super().__init__(name)
        self._task = task
        self._on_demand = on_demand

    @property
    def task(self) -> Task:  # type: ignore[override]  # not a class attribute here
        return self._task

    @property
    def status(self) -> Status:
        return self._on_demand.status

    async def ready(self) -> bool:
        return await self._on_demand.ready()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """Async context manager. Load the model if necessary, and yield its worker. The model stays
        loaded until the ``async with`` block ends. Raises ``BackendError`` if the model cannot be
        loaded."""
        async with self._on_demand.use() as backend:
            if not isinstance(backend, TaskBackend) or backend.task != self.task:
                raise BackendError(f"The model '{self._name}' is not for {self.task}.")
            async with backend.use() as worker:
                yield worker

    async def close(self) -> None:
        await self._on_demand.close()
