"""Models that read texts and generate none: embedding models and reranking models, for
``/v1/embeddings``, ``/v1/rerank`` and file search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.backends.reading import EmbeddingBackend, OnDemandEmbeddingBackend
from antiphon.embeddings.base import Embedder, Role, Text, Vector, truncate_vector
from antiphon.errors import InvalidRequest, NotFound
from antiphon.limits.clients import ANYONE, Client

_EmbeddingBackend: TypeAlias = EmbeddingBackend | OnDemandEmbeddingBackend
_T = TypeVar("_T")


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
        chosen: tuple[CatalogModel, _EmbeddingBackend] = _choose(
            self._models, name, client, lambda each: each.embedding, ability="support embeddings"
        )
        model, embedding = chosen
        async with embedding.use() as embedder:
            _check(embedder, texts, dimensions)
            embedded = await embedder.embed(texts, role, tenant=tenant)
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
        model, backend = _choose(
            self._models, name, client, lambda each: each.reranking, ability="rerank"
        )
        result = await backend.reranker.rerank(query, texts)
        return RerankedTexts(model, result.scores, result.tokens)


def _choose(
    models: ModelCatalog,
    name: str | None,
    client: Client,
    backend_of: Callable[[CatalogModel], _T | None],
    *,
    ability: str,
) -> tuple[CatalogModel, _T]:
    """Return the requested model and its backend. If ``name`` is None, use the first suitable
    model.

    ``backend_of`` returns the backend of a suitable model, and None for other models. ``ability``:
    a verb for the error message about an unsuitable model, such as "rerank". Raises
    ``RequestError`` if the model is unknown, unsuitable or not allowed for the client.
    """
    if name is not None:
        model = models.find(name)
    else:
        suitable = (model for model in models.all() if backend_of(model) is not None)
        model = next(suitable, models.find(None))
    client.check_model(model.name, name)
    backend = backend_of(model)
    if backend is None:
        raise InvalidRequest(
            f"The model '{model.name}' does not {ability}.",
            param="model",
            code="unsupported_model",
        )
    return model, backend


def _check(embedder: Embedder, texts: Sequence[Text], dimensions: int | None) -> None:
    if dimensions is not None and dimensions > embedder.dimensions:
        raise InvalidRequest(
            f"Invalid 'dimensions': the vectors of this model have {embedder.dimensions}.",
            param="dimensions",
            code="invalid_value",
        )
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
            raise InvalidRequest(
                f"Invalid 'input[{index}]': token ids of this model are below {size}.",
                param=f"input[{index}]",
                code="invalid_value",
            )
