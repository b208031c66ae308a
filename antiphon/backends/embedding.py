"""A model that makes embeddings, where models that answer are served: it refuses to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.conversation import Conversation, Options
from antiphon.embeddings.base import Embedder
from antiphon.errors import InvalidRequest

from .base import Reply

__all__ = ["Embedding"]


class Embedding:
    """``Backend`` that answers nothing. It owns its embedder."""

    context_size: int | None = None
    recommended: Mapping[str, Any] = {}
    sees_images = False

    def __init__(self, name: str, embedder: Embedder) -> None:
        self._name = name
        self.embedder = embedder

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        raise InvalidRequest(
            f"The model '{self._name}' makes embeddings: it cannot answer. Ask it at"
            " /v1/embeddings.",
            param="model",
            code="unsupported_model",
        )

    async def close(self) -> None:
        await self.embedder.close()
