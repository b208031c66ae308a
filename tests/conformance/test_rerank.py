"""``POST /v1/rerank`` in the form of Jina and Cohere."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.reading import RerankBackend
from antiphon.errors import BackendError
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.fakes.reranker import WordReranker

DOCUMENTS = ["a dog barks", {"text": "the cat sat"}, "a black cat"]


@pytest.fixture
def reranker() -> WordReranker:
    return WordReranker()


@pytest.fixture
def script(reranker: WordReranker) -> RerankBackend:
    return RerankBackend("tiny", reranker)


async def ask(server: Server, **body: Any) -> Any:
    return await server.client.post("/v1/rerank", json={"model": "tiny", **body})


@pytest.mark.requirement("EM-RERANK")
async def test_documents_are_ranked_by_relevance(server: Server) -> None:
    answer = await ask(server, query="black cat", documents=DOCUMENTS)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["results"] == [
        {"index": 2, "relevance_score": 1.0},
        {"index": 1, "relevance_score": 0.5},
        {"index": 0, "relevance_score": 0.0},
    ]
    assert body["model"] == "tiny" and body["usage"]["total_tokens"] == 9
    best = await ask(server, query="black cat", documents=DOCUMENTS, top_n=1, return_documents=True)
    assert best.json()["results"] == [
        {"index": 2, "relevance_score": 1.0, "document": {"text": "a black cat"}}
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": [3]}, "documents[0]"),
        ({"query": "a", "documents": [{"title": "a"}]}, "documents[0].text"),
        ({"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["a"], "max_tokens_per_doc": 9}, "max_tokens_per_doc"),
    ],
)
@pytest.mark.requirement("EM-RERANK")
async def test_invalid_request_names_the_field(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    answer = await ask(server, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.requirement("EM-RERANK")
async def test_wrong_kind_of_model_is_rejected(serve: Serve, server: Server) -> None:
    talk = await server.client.post("/v1/responses", json={"model": "tiny", "input": "hi"})
    assert (talk.status_code, talk.json()["error"]["code"]) == (400, "unsupported_model")
    rank = await ask(serve(), query="a", documents=["a"])
    assert (rank.status_code, rank.json()["error"]["code"]) == (400, "unsupported_model")


@pytest.mark.requirement("EM-RERANK")
async def test_failure_of_the_model_is_an_error(server: Server, reranker: WordReranker) -> None:
    reranker.error = BackendError("The upstream failed.")
    answer = await ask(server, query="a", documents=["a"])
    assert answer.status_code == 502
