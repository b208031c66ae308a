"""Reranking models as backends: they score texts and reject conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.embeddings.reranker import Reranker
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options

from .base import Backend, Reply

__all__ = ["RerankBackend"]


class RerankBackend(Backend):
    """``Backend`` of a reranking model. ``close`` also closes the reranker."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}

    def __init__(self, name: str, reranker: Reranker) -> None:
        self._name = name
        self.reranker = reranker

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise InvalidRequest(
            f"The model '{self._name}' only reranks. Use it at /v1/rerank.",
            param="model",
            code="unsupported_model",
        )

    async def close(self) -> None:
        await self.reranker.close()
