"""A reranker for tests that needs no model."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.embeddings.reranker import RerankResult


class WordReranker:
    """``Reranker`` without a model. The score of a text is the share of the query's words that the
    text contains. While ``error`` is set, every call raises this error."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def rerank(self, query: str, texts: Sequence[str]) -> RerankResult:
        if self.error is not None:
            raise self.error
        words = set(query.split())
        scores = tuple(len(words & set(text.split())) / max(1, len(words)) for text in texts)
        return RerankResult(scores, sum(len(text.split()) for text in texts))

    async def close(self) -> None:
        """Do nothing, because the reranker has no resources to close."""
