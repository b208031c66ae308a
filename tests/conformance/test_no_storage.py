"""A server with ``store_nothing`` answers, and stores no content."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.http.app import create_app
from antiphon.support.logs import open_log
from tests.conformance.conftest import Serve
from tests.conformance.server import engine
from tests.harness import asgi_client

BODY = {"model": "tiny", "input": "hi"}


@pytest.fixture
async def client(serve: Serve) -> Any:
    server = serve(engine(lambda prompt: "Hello there!"), stores_nothing=True)
    app = create_app(
        server.service,
        ids=lambda prefix: prefix,
        log=open_log(server.log),
        stores_nothing=True,
    )
    async with asgi_client(app) as opened:
        yield opened


async def test_responses_are_given_out_and_not_stored(client: Any) -> None:
    answer = (await client.post("/v1/responses", json=BODY)).json()
    assert (answer["status"], answer["store"]) == ("completed", False)
    assert (await client.get(f"/v1/responses/{answer['id']}")).status_code == 404
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"), [("store", True), ("background", True), ("conversation", "conv_1")]
)
async def test_fields_that_need_storage_are_refused(client: Any, field: str, value: Any) -> None:
    refused = await client.post("/v1/responses", json={**BODY, field: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (403, "storage_disabled")
    assert error["param"] == field


#: Endpoints that store nothing of a request, and those with which operators change the server.
STORE_NOTHING = {
    "/antiphon/keys",
    "/antiphon/sign-out",
    "/detokenize",
    "/tokenize",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/containers",
    "/v1/decisions",
    "/v1/embeddings",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/moderations",
    "/v1/prompts",
    "/v1/rerank",
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
}


async def test_objects_that_are_stored_are_refused(client: Any) -> None:
    """If this test fails for a new endpoint, add its path to ``_STORING`` in ``http/app.py``, or
    to ``STORE_NOTHING`` if nothing of its requests is stored."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    creating = {path for path in paths if "post" in paths[path] and "{" not in path}
    for path in creating - STORE_NOTHING:
        if not path.startswith("/api/"):
            refused = await client.post(path, json={})
            assert refused.status_code == 403, path
            assert "stores nothing" in refused.json()["error"]["message"]
    assert (await client.get("/v1/vector_stores")).status_code == 200
