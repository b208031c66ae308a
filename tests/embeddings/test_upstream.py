"""Embeddings from another server: requests and responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.backends.reading import EmbeddingBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.base import Prefixes
from antiphon.embeddings.upstream import load
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.models.catalog import load as load_catalog
from antiphon.resources.reading_models import Embeddings
from antiphon.testing.embedder_check import check_embedder
from tests.fakes.embedder import WordEmbedder
from tests.upstream.fakes import fake, json_answer

LISTED = json_answer({"data": [{"id": "words"}]})


@asynccontextmanager
async def words() -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that embeds, and the requests that it received."""
    embedder, requests = WordEmbedder(256), []

    async def embeddings(request: web.Request) -> web.Response:
        body = await request.json()
        requests.append(body)
        vectors = await embedder.embed(body["input"])
        data = [
            {"object": "embedding", "index": at, "embedding": [2 * n for n in vector]}
            for at, vector in enumerate(vectors.vectors)
        ]
        usage = {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens}
        return web.json_response({"data": data[::-1], "usage": usage})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/embeddings", embeddings)
    async with TestServer(app, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}", requests


async def test_keeps_the_contract() -> None:
    async with words() as (url, _):
        await check_embedder(await load("m", url, model="words"))


async def test_request_has_prefixes_options_and_at_most_128_texts() -> None:
    async with words() as (url, request):
        embedder = await load(
            "m",
            url,
            model="words",
            prefixes=Prefixes(query="find: ", passage="told: "),
            options={"body": {"truncate": True}},
        )
        assert embedder.dimensions == 256
        vectors = await embedder.embed(["cat"] * 130, "passage")
        await embedder.embed(["cat"])
        await embedder.close()
    assert len(vectors.vectors) == 130 and vectors.tokens == 260
    assert [len(body["input"]) for body in request] == [1, 128, 2, 1]
    assert request[1]["input"][0] == "told: cat" and request[3]["input"] == ["find: cat"]
    same = {"model": "words", "encoding_format": "float", "truncate": True}
    assert all({name: body[name] for name in same} == same for body in request)


async def test_token_ids_are_rejected() -> None:
    async with words() as (url, _):
        embedder = await load("m", url, model="words")
        with pytest.raises(InvalidRequest, match="not token ids"):
            await embedder.embed([(1, 2)])
        await embedder.close()


GOOD = {"data": [{"index": 0, "embedding": [1.0, 0.0]}], "usage": {"prompt_tokens": 1}}


@pytest.mark.parametrize(
    "output",
    [
        [],
        {"data": 5},
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": "first", "embedding": [1]}]},
        {"data": [{"index": 0, "embedding": "abc"}]},
        {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": [None]}]},
        {"data": [{"index": 0, "embedding": [1e300]}]},
        {"data": [{"index": 0, "embedding": [1.0]}], "usage": "much"},
        b"no json",
    ],
)
async def test_malformed_responses_are_errors(output: Any) -> None:
    answers = [json_answer(GOOD), json_answer(output)]
    async with fake(v1__models=LISTED, v1__embeddings=answers) as upstream:
        embedder = await load("m", upstream.url)
        with pytest.raises(BackendError, match="The upstream's response is not"):
            await embedder.embed(("cat",))
        await embedder.close()
    assert upstream.bodies[0]["model"] == "words"


async def test_client_error_keeps_its_message() -> None:
    refused = json_answer(
        {"error": {"message": "Too long.", "code": "context_length_exceeded"}}, 400
    )
    async with fake(v1__models=LISTED, v1__embeddings=[json_answer(GOOD), refused]) as upstream:
        embedder = await load("m", upstream.url)
        with pytest.raises(BackendError) as error:
            await embedder.embed(("cat",))
        await embedder.close()
    assert error.value.code == "context_length_exceeded"


async def test_configured_upstream_embedder() -> None:
    async with words() as (url, _):
        model = Model(engine="embeddings", source=url, upstream_model="words")
        catalog = await load_catalog(Settings(models={"m": model}))
        embedding = catalog.find("m").backend
        assert isinstance(embedding, EmbeddingBackend)
        async with embedding.use() as embedder:
            assert embedder.dimensions == 256
        await catalog.close()
    unreachable = Model(engine="embeddings", source="http://127.0.0.1:9", upstream_model="words")
    with pytest.raises(SetupError, match="model m: The upstream cannot be reached"):
        await load_catalog(Settings(models={"m": unreachable}))


async def test_loads_on_demand_and_unloads_when_idle() -> None:
    async with words() as (url, _):
        model = Model(
            engine="embeddings",
            source=url,
            upstream_model="words",
            load="demand",
            idle_unload_s=0.01,
        )
        catalog = await load_catalog(Settings(models={"m": model}))
        served, embeddings = catalog.find("m"), Embeddings(catalog)
        assert served.backend.status.value == "unloaded"
        async with asyncio.timeout(60):
            one, two = await asyncio.gather(
                *(embeddings.embed("m", [t], tenant="a") for t in ("cat", "dog"))
            )
            assert len(one.vectors[0]) == 256 and one.vectors != two.vectors
            with pytest.raises(InvalidRequest, match="dimensions"):
                await embeddings.embed("m", ["cat"], tenant="a", dimensions=257)
            while served.backend.status.value != "unloaded":
                await asyncio.sleep(0.01)
            assert (await embeddings.embed("m", ["cat"], tenant="a")).vectors == one.vectors
        await catalog.close()
    unreachable = Model(engine="embeddings", source="http://127.0.0.1:9", load="demand")
    catalog = await load_catalog(Settings(models={"m": unreachable}))
    with pytest.raises(BackendError, match="m"):
        await Embeddings(catalog).embed("m", ["cat"], tenant="a")
    await catalog.close()
