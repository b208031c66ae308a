"""Combined keyword and vector search over the real service; only the model is scripted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from antiphon.backends.reading import EmbeddingBackend, RerankBackend
from antiphon.errors import BackendError, InvalidRequest
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.resources.file_storage.contents import single_chunk
from antiphon.resources.file_storage.files import FileUpload
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.cursors import PageParams
from antiphon.wire.parsing.vector_stores import (
    AddFile,
    CreateVectorStore,
    RankingOptions,
    SearchRequest,
)
from antiphon.wire.resources.filters import Comparison
from antiphon.wire.resources.vector_stores import LastError, VectorStore
from tests.fakes.embedder import WordEmbedder
from tests.fakes.reranker import WordReranker

TEXTS = {"fox": "red fox", "foxes": "red red foxes jump", "sea": "the deep sea"}


class SearchService:
    """A service with one vector store and its embedder."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.embedder = WordEmbedder(256)
        self.reranker = WordReranker()
        models = (
            ServedModel(name="e", backend=EmbeddingBackend("e", self.embedder), created=1),
            ServedModel(name="r", backend=RerankBackend("r", self.reranker), created=1),
        )
        self.service = Service(
            RunDependencies(
                models=Catalog(models),
                store=MemoryStore(),
                clock=lambda: 1_000,
                ids=lambda prefix: f"{prefix}_{next(numbers)}",
                policy=Policy(file_search_embeddings="e"),
            )
        )
        self.stores = self.service.vector_stores

    async def filled(self, **texts: str) -> VectorStore:
        store = await self.stores.create("t", CreateVectorStore())
        for name, text in texts.items():
            content = text.encode()
            upload = FileUpload(
                filename=name,
                purpose="assistants",
                bytes=len(content),
                chunks=single_chunk(content),
            )
            file = await self.service.files.create("t", upload)
            added = AddFile(file_id=file.id, attributes={"name": name})
            await self.stores.add_file("t", store.id, added)
        async with asyncio.timeout(60):
            while (await self.stores.retrieve("t", store.id)).status == "in_progress":
                await asyncio.sleep(0)
        return await self.stores.retrieve("t", store.id)

    async def search(self, store: VectorStore, query: str, **options: object) -> list[str]:
        search = SearchRequest(queries=(query,), **options)  # type: ignore[arg-type]
        return [one.filename for one in await self.stores.search("t", (store.id,), search)]


@pytest.fixture
async def search_service() -> AsyncIterator[SearchService]:
    search_service = SearchService()
    search_service.service.start()
    yield search_service
    await search_service.service.drain(0)


async def test_rankings_are_weighted(search_service: SearchService) -> None:
    store = await search_service.filled(**TEXTS)
    assert store.file_counts.completed == 3
    roles = {role for _, role in search_service.embedder.requests}
    assert roles == {"passage"}
    words = RankingOptions(embedding_weight=0.0)
    assert await search_service.search(store, "red fox", ranking=words) == ["fox", "foxes"]
    meaning = RankingOptions(text_weight=0.0)
    assert await search_service.search(store, "red fox", ranking=meaning) == ["fox", "foxes", "sea"]
    assert await search_service.search(store, "red fox") == ["fox", "foxes", "sea"]
    assert await search_service.search(store, "red fox", ranking=RankingOptions(threshold=1.0)) == [
        "fox"
    ]
    assert search_service.embedder.requests[-1] == (("red fox",), "query")


async def test_filter_applies_to_both_rankings(search_service: SearchService) -> None:
    store = await search_service.filled(**TEXTS)
    only = Comparison("eq", "name", "foxes")
    assert await search_service.search(store, "red fox", filter=only) == ["foxes"]


async def test_several_vector_stores_give_one_ranking(search_service: SearchService) -> None:
    one, two = (
        await search_service.filled(fox="red fox"),
        await search_service.filled(sea="the deep sea"),
    )
    search = SearchRequest(queries=("deep sea", "red fox"))
    search = await search_service.stores.search("t", (one.id, two.id), search)
    assert {(each.filename, each.score) for each in search[:2]} == {("fox", 1.0), ("sea", 1.0)}


async def test_failing_embedder_fails_indexing_and_search(search_service: SearchService) -> None:
    search_service.embedder.error = BackendError("The model is ill.")
    store = await search_service.filled(fox="red fox")
    assert store.file_counts.failed == 1
    (file,) = (await search_service.stores.list_files("t", store.id, PageParams())).data
    assert file.last_error == LastError(code="server_error", message="The model is ill.")
    with pytest.raises(BackendError):
        await search_service.search(store, "fox")


async def test_ranker_ranks_the_results(search_service: SearchService) -> None:
    store = await search_service.filled(
        long="red red red fox fox", right="the quick red fox jumps", other="the deep sea"
    )
    query = "the quick red fox"
    for ranker in ("auto", "none", "default-2024-11-15"):
        ranking = RankingOptions(ranker=ranker)
        assert (await search_service.search(store, query, ranking=ranking))[:2] != []
    reranked = RankingOptions(ranker="r")
    names = await search_service.search(store, query, ranking=reranked)
    assert names == ["right", "long", "other"]
    strict = RankingOptions(ranker="r", threshold=0.5)
    found = await search_service.stores.search(
        "t", (store.id,), SearchRequest(queries=("nothing", query), ranking=strict)
    )
    assert [(each.filename, each.score) for each in found] == [("right", 1.0), ("long", 0.5)]
    assert await search_service.search(store, query, ranking=reranked, limit=1) == ["right"]


async def test_unknown_ranker_is_rejected_by_name(search_service: SearchService) -> None:
    store = await search_service.filled(a="a")
    for ranker in ("x", "e"):
        with pytest.raises(InvalidRequest, match=f"'{ranker}'") as rejection:
            await search_service.search(store, "a", ranking=RankingOptions(ranker=ranker))
        assert rejection.value.param == "ranking_options.ranker"
        assert "'r'" in rejection.value.message


async def test_failed_reranking_fails_the_search(search_service: SearchService) -> None:
    store = await search_service.filled(a="a")
    search_service.reranker.error = BackendError("The upstream failed.")
    with pytest.raises(BackendError, match="failed"):
        await search_service.search(store, "a", ranking=RankingOptions(ranker="r"))
    empty = await search_service.filled()
    assert await search_service.search(empty, "a", ranking=RankingOptions(ranker="r")) == []
