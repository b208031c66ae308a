"""Models for one task: embedding models and reranking models, for ``/v1/embeddings``,
``/v1/rerank`` and file search."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from antiphon.backends.base import Task
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.backends.reading import OnDemandTaskBackend, TaskBackend
from antiphon.embeddings.base import (
    Embedder,
    EmbeddingResult,
    Role,
    Text,
    Vector,
    truncate_vector,
)
from antiphon.embeddings.reranker import RerankResult
from antiphon.errors import InvalidRequest, NotFound, invalid_field, unsupported_model
from antiphon.limits.clients import ANYONE, Client

#: What the errors about an unsuitable model say that it does not do.
_ABILITIES: Mapping[Task, str] = {
    "embeddings": "support embeddings",
    "moderation": "moderate",
    "reranking": "rerank",
    "transcription": "write down speech",
    "speech": "read texts aloud",
}


class EmbeddedTexts(Struct, frozen=True):
    """The result of embedding texts: one vector per text, the number of input tokens, and the model
    that was used."""

    model: CatalogModel
    vectors: tuple[Vector, ...]
    tokens: int


class Embeddings:
    """Embeds texts with any served embedding model."""

    def __init__(self, models: ModelCatalog) -> None:
        self._models = models

    async def embed(
        self,
        name: str | None,
        texts: Sequence[Text],
        *,
        tenant: str,
        role: Role = "query",
        dimensions: int | None = None,
        client: Client = ANYONE,
    ) -> EmbeddedTexts:
        """Compute the embeddings of texts for a client.

        - ``name``: the embedding model. None means the first embedding model.
        - ``texts``: each text is a string or a sequence of token ids.
        - ``tenant``: the client's tenant. Tenants take turns at a model of this process.
        - ``role``: whether the texts are search queries or passages to be searched.
        - ``dimensions``: length of the vectors. None means the length that the model returns.

        Raises ``RequestError``, ``BackendError``.
        """
        async with use_model(self._models, name, "embeddings", client) as (model, embedder):
            _check(embedder, texts, dimensions)
            embedded: EmbeddingResult = await embedder.embed(texts, role, tenant=tenant)
            vectors = embedded.vectors
            if dimensions is not None and dimensions < embedder.dimensions:
                vectors = tuple(truncate_vector(vector, dimensions) for vector in vectors)
        return EmbeddedTexts(model, vectors, embedded.tokens)


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
        return tuple(
            model.name for model in self._models.all() if model.backend.task == "reranking"
        )

    def is_served(self, name: str) -> bool:
        """Return whether the server has a reranking model with this name or alias."""
        try:
            return self._models.find(name).backend.task == "reranking"
        except NotFound:
            return False

    async def rerank(
        self, name: str | None, query: str, texts: Sequence[str], *, client: Client = ANYONE
    ) -> RerankedTexts:
        """Score texts by their relevance to ``query``. If ``name`` is None, use the first reranking
        model. Raises ``RequestError``, ``BackendError``."""
        async with use_model(self._models, name, "reranking", client) as (model, reranker):
            result: RerankResult = await reranker.rerank(query, texts)
        return RerankedTexts(model, result.scores, result.tokens)


@asynccontextmanager
async def use_model(
    models: ModelCatalog, name: str | None, task: Task, client: Client
) -> AsyncIterator[tuple[CatalogModel, Any]]:
    """Load the model that a client requests for a task, and yield the model and its worker, such as
    an embedder. If ``name`` is None, use the first suitable model.

    Raises ``RequestError`` if the model is unknown, unsuitable or not allowed for the client, and
    ``BackendError`` if it cannot be loaded.
    """
    if name is not None:
        model = models.find(name)
    else:
        suitable = (model for model in models.all() if model.backend.task == task)
        model = next(suitable, models.find(None))
    client.check_model(model.name, name)
    backend = model.backend
    if not isinstance(backend, TaskBackend | OnDemandTaskBackend) or backend.task != task:
        raise unsupported_model(f"The model '{model.name}' does not {_ABILITIES[task]}.")
    async with backend.use() as worker:
        yield model, worker


def _check(embedder: Embedder, texts: Sequence[Text], dimensions: int | None) -> None:
    if dimensions is not None and dimensions > embedder.dimensions:
        raise invalid_field("dimensions", f"the vectors of this model have {embedder.dimensions}.")
    size = embedder.vocabulary_size
    for index, text in enumerate(texts):
        if isinstance(text, str):
            continue
        if size is None:
            raise InvalidRequest(
                "This model accepts texts, not token ids.",
                param=f"input[{index}]",
                code="unsupported_value",
            )
        if any(id >= size for id in text):
            raise invalid_field(f"input[{index}]", f"token ids of this model are below {size}.")
