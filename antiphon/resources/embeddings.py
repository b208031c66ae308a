"""Embed texts for ``/v1/embeddings`` and for file search: choose the model and check the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.backends.embedding import EmbeddingBackend, OnDemandEmbeddingBackend
from antiphon.embeddings.base import Embedder, Role, Text, Vector, truncate_vector
from antiphon.errors import InvalidRequest
from antiphon.limits.clients import ANYONE, Client

from .model_choice import choose_model

__all__ = ["EmbeddedTexts", "Embeddings"]


_EmbeddingBackend: TypeAlias = EmbeddingBackend | OnDemandEmbeddingBackend


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
        chosen: tuple[CatalogModel, _EmbeddingBackend] = choose_model(
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
