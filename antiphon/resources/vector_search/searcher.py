"""Search in vector stores: rank the chunks by keywords and by vectors, and merge the two
rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.embeddings.base import Vector
from antiphon.errors import invalid_field
from antiphon.resources.reading_models import Embeddings, Rerankers
from antiphon.retrieval.rank_fusion import best_scores, fuse_rankings
from antiphon.retrieval.vector_search import VectorSearch
from antiphon.store.common.search_terms import query_terms
from antiphon.store.vectors import ChunkHit, IndexedFile, VectorIndex, WordQuery
from antiphon.wire.parsing.errors import invalid_value
from antiphon.wire.parsing.vector_stores import RankingOptions, SearchRequest
from antiphon.wire.resources.filters import matches
from antiphon.wire.resources.vector_stores import TextPart, VectorStoreSearchResult

_MAX_WORDS = 64
#: Number of hits that each ranking contributes to the fusion.
_RANKING_SIZE = 100
#: Number of the best fused hits whose texts a reranking model reads.
_RERANKED_HITS = 50
#: Values of ``ranker`` in OpenAI's API. They are not names of models. ``none`` disables reranking.
#: ``auto`` and ``default-2024-11-15`` mean the server's default reranking model.
_NO_RERANKING = "none"
_SERVER_RANKERS = ("auto", "default-2024-11-15")

_T = TypeVar("_T")

#: Identifies a chunk: vector store id, chunk number, file id.
_ChunkKey = tuple[str, int, str]


class _SearchScope(Struct, frozen=True):
    """The files of one vector store that a search considers: the indexed files that match the
    request's filter. ``is_whole``: True if the request has no filter, so that all indexed files are
    searched."""

    store_id: str
    files: Mapping[str, IndexedFile]
    is_whole: bool


class Searcher:
    """Searches vector stores. ``model``: the embedding model. If it is None, only keyword search is
    available. ``reranker``: the reranking model for the rankers ``auto`` and
    ``default-2024-11-15``. If it is None, these rankers keep the order of the merged keyword and
    vector rankings."""

    def __init__(
        self,
        vectors: VectorIndex,
        embeddings: Embeddings,
        model: str | None,
        rerankers: Rerankers,
        reranker: str | None,
    ) -> None:
        self._rerankers = rerankers
        self._reranker = reranker
        self._vectors = vectors
        self._vector_search = VectorSearch(vectors)
        self._embeddings = embeddings
        self._model = model

    def check(self, ranking: RankingOptions, path: str) -> None:
        """Check the ranking options. Raises ``InvalidRequest`` for an unknown ranker, and for a
        text weight of 0 on a server without an embedding model.

        ``path``: prefix of the field ``ranking_options`` in error messages, such as ``tools[0].``.
        """
        rankers = (_NO_RERANKING, *_SERVER_RANKERS)
        if ranking.ranker not in rankers and not self._rerankers.is_served(ranking.ranker):
            raise invalid_value(
                f"{path}ranking_options.ranker",
                ranking.ranker,
                (*rankers, *self._rerankers.names()),
            )
        if self._model is None and not ranking.text_weight:
            param = f"{path}ranking_options.hybrid_search.text_weight"
            raise invalid_field(
                param,
                "this server has keyword search only, so its weight must not be 0.",
                code="unsupported_value",
            )

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        """Return the best chunks of the vector stores, best first. Raises ``RunError``."""
        scopes = [await self._scope(tenant, store_id, request) for store_id in store_ids]
        vectors: Sequence[Vector | None] = [None] * len(request.queries)
        if self._model is not None and request.ranking.embedding_weight:
            embedded = await self._embeddings.embed(
                self._model, request.queries, tenant=tenant, role="query"
            )
            vectors = embedded.vectors
        scores = [
            await self._scores(tenant, scopes, query, vector, request.ranking)
            for query, vector in zip(request.queries, vectors, strict=True)
        ]
        ranked = best_scores(scores)
        reranker = self._reranking_model(request.ranking.ranker)
        if reranker is not None:
            ranked = ranked[:_RERANKED_HITS]
        else:
            ranked = _select(ranked, request)
        results = await self._load_results(tenant, scopes, ranked)
        if reranker is None or not results:
            return results
        return await self._rerank(reranker, results, request)

    def _reranking_model(self, ranker: str) -> str | None:
        if ranker == _NO_RERANKING:
            return None
        return self._reranker if ranker in _SERVER_RANKERS else ranker

    async def _rerank(
        self, model: str, results: Sequence[VectorStoreSearchResult], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        """Rank results with a reranking model. The score of a result is its highest score over all
        queries."""
        texts = ["".join(part.text for part in result.content) for result in results]
        by_query = [
            (await self._rerankers.rerank(model, query, texts)).scores for query in request.queries
        ]
        highest = [max(scores) for scores in zip(*by_query, strict=True)]
        pairs = sorted(zip(results, highest, strict=True), key=lambda pair: -pair[1])
        return tuple(
            replace(result, score=round(score, 6)) for result, score in _select(pairs, request)
        )

    async def _scope(self, tenant: str, store_id: str, request: SearchRequest) -> _SearchScope:
        entries = await self._vectors.list_files(tenant, store_id)
        selected = {
            entry.file.id: entry
            for entry in entries
            if entry.file.status == "completed" and matches(request.filter, entry.file.attributes)
        }
        return _SearchScope(store_id, selected, request.filter is None)

    async def _scores(
        self,
        tenant: str,
        scopes: Sequence[_SearchScope],
        query: str,
        vector: Vector | None,
        ranking: RankingOptions,
    ) -> Mapping[_ChunkKey, float]:
        """Score the chunks of the files in ``scopes`` for one query: merge the keyword ranking and
        the vector ranking. ``vector``: the vector of the query. If it is None, only the keyword
        ranking is used."""
        words = query_terms(query)[:_MAX_WORDS]
        by_words, by_meaning = [], []
        for scope in scopes:
            files = scope.files.keys()
            by_word = WordQuery(words=words, files=files, limit=_RANKING_SIZE)
            hits = await self._vectors.search_words(tenant, scope.store_id, by_word)
            by_words += [(scope.store_id, hit) for hit in hits]
            if vector is not None and self._model is not None:
                near = await self._vector_search.search(
                    tenant,
                    scope.store_id,
                    self._model,
                    vector,
                    None if scope.is_whole else files,
                    _RANKING_SIZE,
                )
                by_meaning += [(scope.store_id, hit) for hit in near]
        if vector is None:
            return fuse_rankings([(1.0, _ordered(by_words))])
        return fuse_rankings(
            [
                (ranking.embedding_weight, _ordered(by_meaning)),
                (ranking.text_weight, _ordered(by_words)),
            ]
        )

    async def _load_results(
        self, tenant: str, scopes: Sequence[_SearchScope], ranked: Sequence[tuple[_ChunkKey, float]]
    ) -> tuple[VectorStoreSearchResult, ...]:
        files = {scope.store_id: scope.files for scope in scopes}
        texts: dict[tuple[str, int], str] = {}
        for store_id in files:
            numbers = {number for (store, number, _), _ in ranked if store == store_id}
            loaded = await self._vectors.chunk_texts(tenant, store_id, numbers) if numbers else {}
            texts.update({(store_id, number): text for number, text in loaded.items()})
        return tuple(
            VectorStoreSearchResult(
                file_id=file_id,
                filename=files[store_id][file_id].filename,
                score=round(score, 6),
                attributes=files[store_id][file_id].file.attributes,
                content=(TextPart(text=texts[(store_id, number)]),),
            )
            for (store_id, number, file_id), score in ranked
            if file_id in files[store_id] and (store_id, number) in texts
        )


def _select(ranked: Sequence[tuple[_T, float]], request: SearchRequest) -> list[tuple[_T, float]]:
    """Return at most the first ``request.limit`` entries of a ranking. Entries whose score is below
    the threshold of the request are left out."""
    selected = [pair for pair in ranked if pair[1] >= request.ranking.threshold]
    return selected[: request.limit]


def _ordered(hits: Sequence[tuple[str, ChunkHit]]) -> list[_ChunkKey]:
    """Merge the hits of several vector stores into one ranking by score. The scores of different
    vector stores are comparable. Returns the best ``_RANKING_SIZE`` chunks."""
    ranked = sorted(hits, key=lambda pair: -pair[1].score)
    return [(store_id, hit.chunk, hit.file_id) for store_id, hit in ranked][:_RANKING_SIZE]
