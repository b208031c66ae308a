"""Embeddings from any server that has OpenAI's endpoint ``/embeddings``: vLLM, llama-server, TEI,
Ollama, OpenAI."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

from antiphon.errors import BackendError, InvalidRequest
from antiphon.upstream.client import Upstream
from antiphon.upstream.endpoint import UpstreamModel, connecting_model

from .base import EmbeddingResult, Prefixes, Role, Text, Vector, truncate_vector

#: Texts per request.
_BATCH_SIZE = 128
_WAIT_S = 600
_INVALID_RESPONSE = "The upstream's response is not a list of embeddings."


async def load(
    name: str,
    url: str,
    *,
    key: str | None = None,
    model: str | None = None,
    prefixes: Prefixes | None = None,
    options: Mapping[str, object] | None = None,
) -> UpstreamEmbedder:
    """Return the embedder for a model on another server, whose address is ``url``.

    - ``name``: the name of the model in Antiphon's configuration.
    - ``key``: the API key of the other server.
    - ``model``: the name of the model on the other server. If None, the first model in the other
      server's list of models is used.
    - ``prefixes``: texts that are put before queries and passages.
    - ``options``: the engine options of the model in the configuration.

    The function sends one text to find out the length of the vectors. Raises ``SetupError`` if the
    other server cannot be used.
    """
    async with connecting_model(name, url, key, model, options) as (upstream, body):
        embedder = UpstreamEmbedder(upstream, body, prefixes or Prefixes())
        embedder.dimensions = len((await embedder.embed(("one",))).vectors[0])
        return embedder


class UpstreamEmbedder(UpstreamModel):
    """``Embedder`` that sends texts to the endpoint ``/embeddings`` of an upstream server.
    ``prefixes``: texts that are put before queries and passages."""

    vocabulary_size: int | None = None
    dimensions = 0

    def __init__(self, upstream: Upstream, body: Mapping[str, object], prefixes: Prefixes) -> None:
        super().__init__(upstream, body)
        self._prefixes = prefixes

    async def embed(
        self, texts: Sequence[Text], role: Role = "query", *, tenant: str = ""
    ) -> EmbeddingResult:
        lead = self._prefixes.for_role(role)
        vectors: list[Vector] = []
        tokens = 0
        for start in range(0, len(texts), _BATCH_SIZE):
            inputs = [lead + _require_text(text) for text in texts[start : start + _BATCH_SIZE]]
            made, read = await self._embed_batch(inputs)
            vectors += made
            tokens += read
        return EmbeddingResult(tuple(vectors), tokens)

    async def _embed_batch(self, texts: list[str]) -> tuple[list[Vector], int]:
        fields = {"input": texts, "encoding_format": "float"}
        answer = await self._request("embeddings", fields, _WAIT_S)
        try:
            rows = {int(entry["index"]): entry["embedding"] for entry in answer["data"]}
            vectors = [array("f", rows[at]) for at in range(len(texts))]
            tokens = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise BackendError(_INVALID_RESPONSE) from None
        if not all(vector and all(map(math.isfinite, vector)) for vector in vectors):
            raise BackendError(_INVALID_RESPONSE)
        return [truncate_vector(vector, len(vector)) for vector in vectors], tokens


def _require_text(text: Text) -> str:
    if not isinstance(text, str):
        raise InvalidRequest("This model accepts texts, not token ids.", param="input")
    return text
