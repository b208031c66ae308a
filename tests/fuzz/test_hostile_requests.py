"""A hostile value at any place of any request is answered: with no status 5xx, and with errors as
the API has them. ``make fuzz`` sends many more requests."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from antiphon.backends.base import Backend
from antiphon.backends.reading import EmbeddingBackend, RerankBackend, SpeechBackend
from antiphon.resources.prompts import Prompts
from antiphon.store import open_store
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Server, engine, local
from tests.fakes.audio import WordSpeaker
from tests.fakes.embedder import WordEmbedder
from tests.fakes.reranker import WordReranker
from tests.fuzz.full_requests import BODIES
from tests.fuzz.hostile_requests import HostileRequest, hostile_bodies, hostile_requests
from tests.hypothesis_settings import is_fuzz
from tests.schemathesis.server import create_objects
from tests.tools.image_generation.fake_generator import FakeImageGenerator, image_provider

#: Requests for each operation, in a usual run and under ``make fuzz``.
USUAL, MANY = 8, 2_000
#: The scripted model obeys no format, and the server has no images.
BAD_GATEWAY = 502


def fault(request: HostileRequest, answer: httpx.Response) -> str | None:
    """Return what is wrong with an answer."""
    if answer.status_code >= 500 and answer.status_code != BAD_GATEWAY:
        return f"status {answer.status_code}"
    if answer.status_code < 400:
        return None
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError):
        return f"no error: {answer.text[:200]}"
    if request.path.startswith("/api/"):
        return None if isinstance(error, str) and error else "the error is no text"
    if not error["message"] or not error["type"]:
        return f"the error says nothing: {error}"
    if request.path.startswith("/v1/messages"):
        return None
    return None if error.keys() >= {"param", "code"} else f"the error has no path: {error}"


async def send(server: Server, request: HostileRequest) -> str | None:
    """Send a request. Returns what is wrong with its answer."""
    headers = {} if request.content is None else {"content-type": request.content_type.encode()}
    async with asyncio.timeout(60):
        answer = await server.client.request(
            request.method, request.path, content=request.content, headers=headers
        )
    problem = fault(request, answer)
    return problem and f"{request}: {problem}"


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    opened = Server(
        local(engine(lambda prompt: "Hello there!")),
        await open_store("memory:"),
        prompts=Prompts(tmp_path),
        **code_interpreter_options(containers()),
    )
    yield opened
    await opened.close()


@pytest.mark.hypothesis
async def test_hostile_values_are_answered(server: Server) -> None:
    document = (await server.client.get("/openapi.json")).json()
    groups: dict[str, list[HostileRequest]] = defaultdict(list)
    for request in hostile_requests(document, await create_objects(server)):
        groups[request.operation].append(request)
    random = Random() if is_fuzz() else Random(1)
    chosen = [
        request
        for group in groups.values()
        for request in random.sample(group, min(len(group), MANY if is_fuzz() else USUAL))
    ]
    random.shuffle(chosen)
    assert [problem for each in chosen if (problem := await send(server, each))] == []


def backend_for(path: str) -> Backend:
    """Return the model ``tiny`` that answers requests of a path."""
    match path:
        case "/v1/embeddings":
            return EmbeddingBackend("tiny", WordEmbedder())
        case "/v1/rerank":
            return RerankBackend("tiny", WordReranker())
        case "/v1/audio/speech":
            return SpeechBackend("tiny", WordSpeaker())
    return local(engine(lambda prompt: "Hello there!"))


@pytest.mark.hypothesis
@pytest.mark.parametrize("path", BODIES)
async def test_hostile_values_in_full_requests_are_answered(path: str) -> None:
    images = {"image_generation": image_provider(FakeImageGenerator())}
    server = Server(backend_for(path), await open_store("memory:"), providers=images)
    try:
        accepted = await server.client.post(path, json=BODIES[path])
        assert accepted.status_code == 200, accepted.text
        requests = list(hostile_bodies(path, BODIES[path]))
        random = Random() if is_fuzz() else Random(1)
        chosen = random.sample(requests, min(len(requests), MANY if is_fuzz() else 2 * USUAL))
        assert [problem for each in chosen if (problem := await send(server, each))] == []
        assert "Traceback" not in server.log.getvalue()
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/vector_stores/{vector_store_id}/search",
            {"query": "a", "ranking_options": {"hybrid_search": {"text_weight": 10**400}}},
            "ranking_options.hybrid_search.text_weight",
        ),
        (
            "/v1/containers",
            {
                "name": "a",
                "skills": [
                    {
                        "type": "inline",
                        "name": "a",
                        "description": "a",
                        "source": {
                            "type": "base64",
                            "media_type": "application/zip",
                            "data": "é",
                        },
                    }
                ],
            },
            "skills[0].source.data",
        ),
    ],
)
async def test_found_values_stay_answered(
    server: Server, path: str, body: dict[str, Any], param: str
) -> None:
    ids = await create_objects(server)
    answer = await server.client.post(path.format(**ids), content=json.dumps(body))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
