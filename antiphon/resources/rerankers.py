"""Rerank texts for ``/v1/rerank`` and for file search: choose the model and score the texts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import NotFound
from antiphon.limits.clients import ANYONE, Client

from .model_choice import choose_model

__all__ = ["RerankedTexts", "Rerankers"]


class RerankedTexts(Struct, frozen=True):
    """The result of reranking texts: one relevance score per text, the number of input tokens, and
    the model that was used."""

    model: CatalogModel
    scores: tuple[float, ...]
    tokens: int


class Rerankers:
    """Reranks texts with any served reranking model."""

    def __init__(self, models: ModelCatalog) -> None:
        self._models = models

    def names(self) -> tuple[str, ...]:
        """Return the names of all reranking models."""
        return tuple(model.name for model in self._models.all() if model.reranking is not None)

    def is_served(self, name: str) -> bool:
        """Return whether the server has a reranking model with this name or alias."""
        try:
            return self._models.find(name).reranking is not None
        except NotFound:
            return False

    async def rerank(
        self, name: str | None, query: str, texts: Sequence[str], *, client: Client = ANYONE
    ) -> RerankedTexts:
        """Score texts by their relevance to ``query``. If ``name`` is None, use the first reranking
        model. Raises ``RequestError``, ``BackendError``."""
        model, backend = choose_model(
            self._models, name, client, lambda each: each.reranking, ability="rerank"
        )
        result = await backend.reranker.rerank(query, texts)
        return RerankedTexts(model, result.scores, result.tokens)
