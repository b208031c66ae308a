"""Models that make embeddings, where models that answer are served: they refuse to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antiphon.conversation import Conversation, Options
from antiphon.embeddings.base import Embedder
from antiphon.errors import BackendError, InvalidRequest

from .base import Backend, Reply, Status
from .on_demand import OnDemandBackend

__all__ = ["EmbeddingBackend", "OnDemandEmbeddingBackend"]


class _EmbeddingOnly(Backend):
    """Answers nothing."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}

    def __init__(self, name: str) -> None:
        self._name = name

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise InvalidRequest(
            f"The model '{self._name}' makes embeddings: it cannot answer. Ask it at"
            " /v1/embeddings.",
            param="model",
            code="unsupported_model",
        )


class EmbeddingBackend(_EmbeddingOnly):
    """``Backend`` over an embedder, which it owns."""

    def __init__(self, name: str, embedder: Embedder) -> None:
        super().__init__(name)
        self._embedder = embedder

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Embedder]:
        """It stays within."""
        yield self._embedder

    async def close(self) -> None:
        await self._embedder.close()


class OnDemandEmbeddingBackend(_EmbeddingOnly):
    """The same over a backend that is loaded by whoever uses it, and closed when idle."""

    def __init__(self, name: str, lazy: OnDemandBackend) -> None:
        super().__init__(name)
        self._lazy = lazy

    @property
    def status(self) -> Status:
        return self._lazy.status

    async def ready(self) -> bool:
        return await self._lazy.ready()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Embedder]:
        """It stays loaded within. Raises ``BackendError`` where it cannot be loaded."""
        async with self._lazy.use() as backend:
            if not isinstance(backend, EmbeddingBackend):
                raise BackendError(f"The model '{self._name}' makes no embeddings.")
            async with backend.use() as embedder:
                yield embedder

    async def close(self) -> None:
        await self._lazy.close()
