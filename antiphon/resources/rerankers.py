"""Reranking for the endpoint and for file search: the choice of the model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.backends.reranking import RerankBackend
from antiphon.clients import ANYONE, Client
from antiphon.errors import InvalidRequest, NotFound

__all__ = ["RerankedTexts", "Rerankers"]


class RerankedTexts(Struct, frozen=True):
    """The relevance of some texts, the number of tokens read, and the model."""

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
        """Return whether a model of this name or alias reranks."""
        try:
            return self._models.find(name).reranking is not None
        except NotFound:
            return False

    async def rerank(
        self, name: str | None, query: str, texts: Sequence[str], *, client: Client = ANYONE
    ) -> RerankedTexts:
        """Score texts for a client; without a name, with the first reranking model. Raises
        ``RequestError``, ``BackendError``."""
        model, backend = self._find(name, client)
        result = await backend.reranker.rerank(query, texts)
        return RerankedTexts(model, result.scores, result.tokens)

    def _find(self, name: str | None, client: Client) -> tuple[CatalogModel, RerankBackend]:
        if name is not None:
            model = self._models.find(name)
        else:
            candidates = (model for model in self._models.all() if model.reranking is not None)
            model = next(candidates, self._models.find(None))
        client.check_model(model.name, name)
        if model.reranking is None:
            raise InvalidRequest(
                f"The model '{model.name}' does not rerank.",
                param="model",
                code="unsupported_model",
            )
        return model, model.reranking
