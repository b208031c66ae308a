"""Searches in vector stores: by words, and by meaning where there are vectors, made one ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.embeddings.base import Vector
from antiphon.errors import InvalidRequest
from antiphon.retrieval.rank_fusion import best, fused
from antiphon.retrieval.vector_search import Nearest
from antiphon.search_terms import query_terms as words_asked
from antiphon.store.vectors import ChunkHit, IndexedFile, VectorIndex
from antiphon.wire.filters import matches
from antiphon.wire.parsing.vector_stores import Ranking, Search
from antiphon.wire.vector_stores import Found, TextPart

from .embeddings import Embeddings

__all__ = ["Searcher"]

_MOST_WORDS = 64
#: How many of each ranking are fused.
_RANKED = 100

#: A chunk: in which vector store, its number, of which file.
_Place = tuple[str, int, str]


class _Where(Struct, frozen=True):
    """A vector store, and those of its files that a filter lets through."""

    store_id: str
    files: Mapping[str, IndexedFile]
    is_whole: bool


class Searcher:
    """One a service. ``model``: who makes the vectors; None: there are none."""

    def __init__(self, vectors: VectorIndex, embeddings: Embeddings, model: str | None) -> None:
        self._vectors = vectors
        self._nearest = Nearest(vectors)
        self._embeddings = embeddings
        self._model = model

    def check(self, ranking: Ranking, path: str) -> None:
        """Raises ``InvalidRequest`` where only the meaning is to count, which nobody here reads.
        ``path``: of what holds the options."""
        if self._model is None and not ranking.words:
            where = f"{path}ranking_options.hybrid_search.text_weight"
            raise InvalidRequest(
                f"Invalid '{where}': this server finds by words alone, so they must count.",
                param=where,
                code="unsupported_value",
            )

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: Search
    ) -> tuple[Found, ...]:
        """The best chunks first. Raises ``RunError``."""
        places = [await self._where(tenant, store_id, asked) for store_id in store_ids]
        vectors: Sequence[Vector | None] = [None] * len(asked.queries)
        if self._model is not None and asked.ranking.meaning:
            made = await self._embeddings.make(self._model, asked.queries, role="query")
            vectors = made.vectors
        scores = [
            await self._scores(tenant, places, query, vector, asked.ranking)
            for query, vector in zip(asked.queries, vectors, strict=True)
        ]
        ranked = [pair for pair in best(scores) if pair[1] >= asked.ranking.threshold]
        return await self._told(tenant, places, ranked[: asked.limit])

    async def _where(self, tenant: str, store_id: str, asked: Search) -> _Where:
        entries = await self._vectors.list_files(tenant, store_id)
        meant = {
            entry.file.id: entry
            for entry in entries
            if entry.file.status == "completed" and matches(asked.filter, entry.file.attributes)
        }
        return _Where(store_id, meant, asked.filter is None)

    async def _scores(
        self,
        tenant: str,
        places: Sequence[_Where],
        query: str,
        vector: Vector | None,
        ranking: Ranking,
    ) -> Mapping[_Place, float]:
        """Of one query. Without vectors, its words are all there is."""
        words = words_asked(query)[:_MOST_WORDS]
        by_words, by_meaning = [], []
        for where in places:
            files = where.files.keys()
            hits = await self._vectors.search_words(tenant, where.store_id, words, files, _RANKED)
            by_words += [(where.store_id, hit) for hit in hits]
            if vector is not None and self._model is not None:
                near = await self._nearest.found(
                    tenant,
                    where.store_id,
                    self._model,
                    vector,
                    None if where.is_whole else files,
                    _RANKED,
                )
                by_meaning += [(where.store_id, hit) for hit in near]
        if vector is None:
            return fused([(1.0, _ordered(by_words))])
        return fused([(ranking.meaning, _ordered(by_meaning)), (ranking.words, _ordered(by_words))])

    async def _told(
        self, tenant: str, places: Sequence[_Where], ranked: Sequence[tuple[_Place, float]]
    ) -> tuple[Found, ...]:
        files = {where.store_id: where.files for where in places}
        texts: dict[tuple[str, int], str] = {}
        for store_id in files:
            numbers = {number for (store, number, _), _ in ranked if store == store_id}
            there = await self._vectors.chunk_texts(tenant, store_id, numbers) if numbers else {}
            texts.update({(store_id, number): text for number, text in there.items()})
        return tuple(
            Found(
                file_id=file_id,
                filename=files[store_id][file_id].filename,
                score=round(score, 6),
                attributes=files[store_id][file_id].file.attributes,
                content=(TextPart(text=texts[(store_id, number)]),),
            )
            for (store_id, number, file_id), score in ranked
            if file_id in files[store_id] and (store_id, number) in texts
        )


def _ordered(hits: Sequence[tuple[str, ChunkHit]]) -> list[_Place]:
    """Over several vector stores, whose scores are of one kind."""
    ranked = sorted(hits, key=lambda pair: -pair[1].score)
    return [(store_id, hit.chunk, hit.file_id) for store_id, hit in ranked][:_RANKED]
