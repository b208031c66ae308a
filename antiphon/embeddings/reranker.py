"""Rerankers. A reranker scores how well each text answers a query. Its model, a cross-encoder,
reads the query and one text together.

The models here run on other servers that have the endpoint ``/rerank`` of Jina and Cohere: vLLM,
llama-server, Infinity, and Jina and Cohere themselves. ``llama`` runs one on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.errors import BackendError
from antiphon.upstream.endpoint import UpstreamModel

#: Texts per request.
_BATCH_SIZE = 128
_WAIT_S = 600
_INVALID_RESPONSE = "The upstream's response is not a list of reranked documents."


class RerankResult(Struct, frozen=True):
    """The relevance of each text to the query, and the number of tokens that the model read. A
    score is from 0 to 1, and the scores have the order of the texts."""

    scores: tuple[float, ...]
    tokens: int


class Reranker(Protocol):
    """Scores with a reranking model how well texts answer a query. The owner of a reranker must
    close it."""

    async def rerank(self, query: str, texts: Sequence[str]) -> RerankResult:
        """Score how well each of ``texts`` answers ``query``. Raises ``BackendError`` if the model
        fails."""

    async def close(self) -> None:
        """Release the resources of the reranker: the loaded model, or the HTTP connections to the
        upstream server."""


class UpstreamReranker(UpstreamModel):
    """``Reranker`` that sends texts to the endpoint ``/rerank`` of an upstream server."""

    async def rerank(self, query: str, texts: Sequence[str]) -> RerankResult:
        scores: list[float] = []
        tokens = 0
        for start in range(0, len(texts), _BATCH_SIZE):
            batch = list(texts[start : start + _BATCH_SIZE])
            found, read = await self._rerank_batch(query, batch)
            scores += found
            tokens += read
        return RerankResult(as_relevance(scores), tokens)

    async def _rerank_batch(self, query: str, texts: list[str]) -> tuple[list[float], int]:
        fields = {"query": query, "documents": texts, "top_n": len(texts)}
        return parse_ranking(await self._request("rerank", fields, _WAIT_S), len(texts))


def parse_ranking(answer: Any, count: int) -> tuple[list[float], int]:
    """Return the scores in an answer of the endpoint ``/rerank``, in the order of the ``count``
    texts, and the number of tokens. Raises ``BackendError`` if they are not in it."""
    try:
        rows = {int(row["index"]): float(row["relevance_score"]) for row in answer["results"]}
        scores = [rows[at] for at in range(count)]
        tokens = int((answer.get("usage") or {}).get("total_tokens") or 0)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise BackendError(_INVALID_RESPONSE) from None
    if not all(map(math.isfinite, scores)):
        raise BackendError(_INVALID_RESPONSE)
    return scores, tokens


def as_relevance(scores: Sequence[float]) -> tuple[float, ...]:
    """Convert scores to the range from 0 to 1. If all scores are already in this range, they stay
    as they are. Otherwise they are treated as logits: some servers, such as llama-server, return
    logits."""
    if all(0 <= score <= 1 for score in scores):
        return tuple(scores)
    return tuple(0.5 * (1 + math.tanh(score / 2)) for score in scores)
