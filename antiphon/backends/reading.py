"""Models that only read, as backends: they produce embeddings or rerank, and reject
conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antiphon.embeddings.base import Embedder
from antiphon.embeddings.reranker import Reranker
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.conversation import Conversation, Options

from .base import Backend, Reply, Status
from .on_demand import OnDemandBackend


class _ReadingBackend(Backend):
    """Base class. It rejects every conversation. ``_use``: what the model does, and where."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    _use = "produces embeddings. Use it at /v1/embeddings"

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise InvalidRequest(
            f"The model '{self._name}' only {self._use}.",
            param="model",
            code="unsupported_model",
        )


class EmbeddingBackend(_ReadingBackend):
    """``Backend`` of a loaded embedding model. ``close`` also closes the embedder."""

    def __init__(self, name: str, embedder: Embedder) -> None:
        super().__init__(name)
        self._embedder = embedder

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Embedder]:
        """Async context manager that yields the embedder. The embedder stays loaded after the
        ``async with`` block, until the method ``close`` is called."""
        yield self._embedder

    async def close(self) -> None:
        await self._embedder.close()


class OnDemandEmbeddingBackend(_ReadingBackend):
    """``Backend`` of an embedding model that is loaded when it is used and unloaded when it is
    idle."""

    def __init__(self, name: str, on_demand: OnDemandBackend) -> None:
        super().__init__(name)
        self._on_demand = on_demand

    @property
    def status(self) -> Status:
        return self._on_demand.status

    async def ready(self) -> bool:
        return await self._on_demand.ready()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Embedder]:
        """Async context manager. Load the model if necessary, and yield its embedder. The model
        stays loaded until the ``async with`` block ends. Raises ``BackendError`` if the model
        cannot be loaded."""
        async with self._on_demand.use() as backend:
            if not isinstance(backend, EmbeddingBackend):
                raise BackendError(f"The model '{self._name}' does not produce embeddings.")
            async with backend.use() as embedder:
                yield embedder

    async def close(self) -> None:
        await self._on_demand.close()


class RerankBackend(_ReadingBackend):
    """``Backend`` of a reranking model. ``close`` also closes the reranker."""

    _use = "reranks. Use it at /v1/rerank"

    def __init__(self, name: str, reranker: Reranker) -> None:
        super().__init__(name)
        self.reranker = reranker

    async def close(self) -> None:
        await self.reranker.close()
