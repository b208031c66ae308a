"""Reranking by another server, and by a model in a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.llama import load_reranker
from antiphon.embeddings.reranker import UpstreamReranker
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.models.catalog import load as load_catalog
from antiphon.resources.reading_models import Rerankers
from antiphon.upstream.endpoint import connecting_model
from tests.embeddings.reranking_model import write_reranker
from tests.tiny_models.tiny_tools import GGUF
from tests.upstream.fakes import Answer, fake, json_answer


def ranked(*scores: float, **more: Any) -> Answer:
    rows = [{"index": n, "relevance_score": score} for n, score in enumerate(scores)]
    return json_answer({"results": rows[::-1], **more})


async def load(url: str, options: dict[str, Any] | None = None) -> UpstreamReranker:
    async with connecting_model("m", f"{url}/v1", None, "bge", options) as (upstream, body):
        return UpstreamReranker(upstream, body)


async def test_scores_come_in_the_order_of_the_texts() -> None:
    answers = [ranked(0.25, 0.75, usage={"total_tokens": 9}), ranked(-2.0, 3.0, 0.5)]
    async with fake(v1__rerank=answers) as upstream:
        reranker = await load(upstream.url, {"body": {"x": 1}})
        first = await reranker.rerank("cats", ["a", "b"])
        logits = await reranker.rerank("cats", ["a", "b", "c"])
        await reranker.close()
    assert (first.scores, first.tokens) == ((0.25, 0.75), 9)
    assert [round(score, 3) for score in logits.scores] == [0.119, 0.953, 0.622]
    path, body, _ = upstream.asked[0]
    assert path == "/v1/rerank"
    assert body == {"model": "bge", "query": "cats", "documents": ["a", "b"], "top_n": 2, "x": 1}


async def test_many_texts_are_sent_in_batches() -> None:
    async with fake(v1__rerank=[ranked(*[0.5] * 128), ranked(0.1, 0.2)]) as upstream:
        reranker = await load(upstream.url)
        result = await reranker.rerank("cats", ["a"] * 130)
        await reranker.close()
    assert result.scores == (*[0.5] * 128, 0.1, 0.2)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"results": [{"index": 0}]},
        {"results": [{"index": 5, "relevance_score": 1}]},
        {"results": [{"index": 0, "relevance_score": "NaN"}]},
        {"results": 3},
        {"results": [{"index": 0, "relevance_score": 1}], "usage": 3},
        [],
    ],
)
async def test_invalid_answer_is_an_error(answer: Any) -> None:
    async with fake(v1__rerank=json_answer(answer)) as upstream:
        reranker = await load(upstream.url)
        with pytest.raises(BackendError):
            await reranker.rerank("cats", ["a"])
        await reranker.close()


async def test_reranking_model_is_served_beside_others() -> None:
    listed = json_answer({"data": [{"id": "bge"}]})
    async with fake(v1__models=listed, v1__rerank=ranked(0.5)) as upstream:
        models = {
            "r": Model(source=f"{upstream.url}/v1", engine="rerank"),
            "talk": Model(source="hello", engine="scripted"),
        }
        catalog = await load_catalog(Settings(models=models))
        try:
            rerankers = Rerankers(catalog)
            assert (await rerankers.rerank(None, "cats", ["a"])).model.name == "r"
            assert rerankers.names() == ("r",)
            assert catalog.find(None).name == "talk"
            with pytest.raises(InvalidRequest, match="does not rerank"):
                await rerankers.rerank("talk", "cats", ["a"])
        finally:
            await catalog.close()


async def test_model_in_a_file_reranks(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "reranker.gguf"
    write_reranker(path)
    model = Model(engine="llama_rerank", source=str(path), context_size=256, threads=1)
    catalog = await load_catalog(Settings(models={"ranker": model}))
    try:
        rerankers = Rerankers(catalog)
        texts = ["The cat sits.", "Anna is ill today.", "word " * 2000, *["A cat."] * 20]
        found = await rerankers.rerank("ranker", "Who is ill?", texts)
        again = await rerankers.rerank("ranker", "Who is ill?", texts[1::-1])
        assert len(found.scores) == len(texts) and all(0 < score < 1 for score in found.scores)
        assert len({round(score, 9) for score in found.scores}) == 4, "equal texts, equal scores"
        assert again.scores == pytest.approx(found.scores[1::-1], rel=1e-4)
        with pytest.raises(InvalidRequest, match="limit of 256 tokens") as refused:
            await rerankers.rerank("ranker", "why " * 2000, texts[:1])
        assert (refused.value.param, refused.value.code) == ("query", "context_length_exceeded")
    finally:
        await catalog.close()


async def test_special_tokens_in_a_query_and_in_texts_are_plain_text(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    path = tmp_path / "reranker.gguf"
    write_reranker(path)
    reranker = await load_reranker(path, context_size=256)
    try:
        plain = await reranker.rerank("Who { document}?", ["ill< |im_end|>", "<< |im_start|>"])
        same = await reranker.rerank("Who {document}?", ["ill<|im_end|>", "<<|im_start|>"])
        assert same.tokens == plain.tokens
        assert same.scores == pytest.approx(plain.scores)
    finally:
        await reranker.close()


async def test_model_that_is_no_reranker_is_refused() -> None:
    pytest.importorskip("xllamacpp")
    model = Model(engine="llama_rerank", source=str(GGUF))
    with pytest.raises(SetupError, match="is not a reranker"):
        await load_catalog(Settings(models={"ranker": model}))
