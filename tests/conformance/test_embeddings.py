"""The Embeddings API, through the official client."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse

from antiphon.backends.reading import EmbeddingBackend
from antiphon.compat.embeddings import parse_embeddings_request
from antiphon.errors import BackendError, InvalidRequest
from tests.conformance.conftest import Serve
from tests.conformance.server import Server
from tests.fakes.embedder import WordEmbedder
from tests.harness import official_client
from tests.wire.test_fuzz import JSON, check_error, mutated, property_test

Json = dict[str, Any]


@pytest.fixture
def embedder() -> WordEmbedder:
    return WordEmbedder(8)


@pytest.fixture
def script(embedder: WordEmbedder) -> EmbeddingBackend:
    return EmbeddingBackend("tiny", embedder)


async def ask(server: Server, **body: Any) -> httpx.Response:
    return await server.client.post("/v1/embeddings", json={"model": "tiny", **body})


@pytest.mark.requirement("EM-ANSWER")
async def test_vectors_in_input_order_with_usage(server: Server) -> None:
    reply = await ask(server, input=["a cat", "a dog", "a cat"])
    assert reply.status_code == 200
    CreateEmbeddingResponse.model_validate_json(reply.content, strict=True)
    body = reply.json()
    assert body["model"] == "tiny" and body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    one, two, three = (entry["embedding"] for entry in body["data"])
    assert one == three != two and len(one) == 8
    again = (await ask(server, input=["a cat"])).json()["data"][0]["embedding"]
    assert again == one


@pytest.mark.requirement("EM-BASE64")
async def test_official_client_reads_floats_and_base64(server: Server) -> None:
    async with official_client(server.app) as client:
        # it asks for base64 unless it is told what to ask for
        usual = await client.embeddings.create(model="gpt-5.5", input="a cat")
        floats = await client.embeddings.create(
            model="gpt-5.5", input="a cat", encoding_format="float"
        )
    assert usual.data[0].embedding == floats.data[0].embedding and usual.model == "gpt-5.5"
    text = (await ask(server, input="a cat", encoding_format="base64")).json()["data"][0]
    assert list(array("f", base64.b64decode(text["embedding"]))) == floats.data[0].embedding


@pytest.mark.requirement("EM-DIMENSIONS")
async def test_dimensions_shorten_vectors(server: Server) -> None:
    (entry,) = (await ask(server, input="a cat in a hat", dimensions=4)).json()["data"]
    assert len(entry["embedding"]) == 4
    assert sum(number**2 for number in entry["embedding"]) == pytest.approx(1)
    reply = await ask(server, input="a cat", dimensions=9)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "dimensions"


async def test_input_type_reaches_the_model(server: Server, embedder: WordEmbedder) -> None:
    for output, meant in (("query", "query"), ("passage", "passage"), ("document", "passage")):
        await ask(server, input="x", input_type=output)
        assert embedder.requests[-1] == (("x",), meant)
    await ask(server, input="x")
    assert embedder.requests[-1][1] == "query"


@pytest.mark.requirement("EM-TOKENS")
async def test_token_ids_reach_the_model_if_it_supports_them(
    server: Server, embedder: WordEmbedder
) -> None:
    await ask(server, input=[1, 2, 3])
    assert embedder.requests[-1][0] == ((1, 2, 3),)
    await ask(server, input=[[1, 2], [3]])
    assert embedder.requests[-1][0] == ((1, 2), (3,))
    embedder.vocabulary_size = None
    reply = await ask(server, input=["x", [3]])
    assert reply.json()["error"]["param"] == "input[1]"


@pytest.mark.requirement("EM-ERRORS")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ""}, "input", "empty_string"),
        ({"input": ["a", ""]}, "input[1]", "empty_string"),
        ({"input": [[]]}, "input[0]", "empty_array"),
        ({"input": {"text": "a"}}, "input", "invalid_type"),
        ({"input": ["a", 5]}, "input[1]", "invalid_type"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [1, True]}, "input[1]", "invalid_type"),
        ({"input": [-1]}, "input[0]", "invalid_value"),
        ({"input": [2**40]}, "input[0]", "invalid_value"),
        ({"input": [5000]}, "input[0]", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
        ({"input": "a", "dimensions": 0}, "dimensions", "integer_below_min_value"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"input": "a", "input_type": "image"}, "input_type", "invalid_value"),
        ({"input": "a", "normalize": False}, "normalize", "unsupported_parameter"),
        ({"input": "a", "model": "nope"}, "model", "model_not_found"),
    ],
)
async def test_invalid_fields_are_rejected(
    server: Server, body: Json, param: str, code: str
) -> None:
    reply = await ask(server, **body)
    assert reply.status_code == (404 if code == "model_not_found" else 400)
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert set(error) == {"message", "type", "param", "code"} and len(reply.content) < 1000


@pytest.mark.requirement("EM-MODELS")
async def test_generation_and_embedding_models_are_separate(serve: Serve, server: Server) -> None:
    reply = await server.post()
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "unsupported_model"
    reply = await ask(serve("Hello"), input="a")
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "model"
    listed = (await server.get("models")).json()
    assert listed["data"][0]["id"] == "tiny" and listed["models"] == []


async def test_model_failure_returns_502_or_400(server: Server, embedder: WordEmbedder) -> None:
    embedder.error = BackendError("The model is gone.")
    reply = await ask(server, input="a")
    assert reply.status_code == 502
    assert reply.json()["error"]["message"] == "The model is gone. You can retry your request."
    embedder.error = BackendError("Too long.", code="context_length_exceeded")
    reply = await ask(server, input="a")
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_input_tokens_are_counted(server: Server) -> None:
    await ask(server, input="one two three")
    (line,) = [json.loads(line) for line in server.log.getvalue().splitlines()]
    assert (line["model"], line["input_tokens"]) == ("tiny", 3)
    metrics = (await server.client.get("/metrics")).text
    assert 'antiphon_prompt_tokens_total{model="tiny"} 3.0' in metrics


@property_test
@given(
    mutated({"input": ["a", [1]], "model": "m", "dimensions": 5, "user": "u"}) | JSON | st.none()
)
def test_any_request_is_answered_or_rejected(value: Any) -> None:
    try:
        parse_embeddings_request(json.dumps(value).encode())
    except InvalidRequest as error:
        check_error(error)
