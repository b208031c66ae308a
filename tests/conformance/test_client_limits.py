"""What a key and its tenant may use: models, tools, requests and background runs at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.store.base import Store
from antiphon.stream.deltas import Close, Open, Text
from antiphon.support.logs import open_log
from antiphon.wire.admin.client_limits import ClientLimits
from antiphon.wire.items import Message
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_mcp import listing_provider
from tests.harness import asgi_client

ANSWER = Open(Message(role="assistant", content=()))


def limited(
    server: Server, key: ClientLimits, tenant: ClientLimits | None = None
) -> httpx.AsyncClient:
    """Return a client with a key that has limits, of a tenant that has limits."""
    app = limited_app(server, key, tenant)
    return asgi_client(app, headers={"authorization": "Bearer secret"})


def limited_app(server: Server, key: ClientLimits, tenant: ClientLimits | None = None) -> ASGIApp:
    entry = AuthKey(name="k", tenant="t", sha256=hashlib.sha256(b"secret").hexdigest(), limits=key)
    access = AuthConfig(keys=(entry,), tenants={} if tenant is None else {"t": tenant})
    numbers = iter(range(1000))
    return create_app(
        server.service,
        access,
        ids=lambda prefix: f"{prefix}_l{next(numbers)}",
        log=open_log(server.log),
    )


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    return dict(reply.json()["error"])


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.requirement("API-KEY-MODELS")
@pytest.mark.parametrize("who", ["key", "tenant"])
async def test_a_model_that_is_not_allowed_looks_unknown(serve: Serve, who: str) -> None:
    limits = [ClientLimits(), ClientLimits(models=("other",))]
    client = limited(serve(), *(limits if who == "tenant" else limits[::-1]))
    for path, body in (
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "background": True}),
        ("/v1/responses/input_tokens", {"input": "hi"}),
        ("/v1/responses/compact", {"input": "hi"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1]}),
    ):
        for name in ("tiny", "none"):
            error = error_of(await client.post(path, json={"model": name, **body}), 404)
            assert (error["code"], error["param"]) == ("model_not_found", "model"), path
            assert error["message"] == (
                f"The model '{name}' does not exist or you do not have access to it."
            )
    assert error_of(await client.post("/v1/responses", json={"input": "hi"}), 404)
    assert (await client.get("/v1/models")).json()["data"] == []
    assert error_of(await client.get("/v1/models/tiny"), 404)["code"] == "model_not_found"


@pytest.mark.requirement("API-KEY-MODELS")
@pytest.mark.parametrize(
    ("allowed", "names"), [("tiny", ["tiny", "gpt-5.5"]), ("gpt-5.5", ["gpt-5.5"])]
)
async def test_an_alias_can_be_allowed_alone(serve: Serve, allowed: str, names: list[str]) -> None:
    client = limited(serve(["Hello!"] * 2), ClientLimits(models=(allowed,)))
    listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == names
    assert [model["slug"] for model in listed["models"]] == names
    for name in ("tiny", "gpt-5.5"):
        reply = await client.post("/v1/responses", json={"model": name, "input": "hi"})
        assert reply.is_success == (name in names)


@pytest.mark.requirement("API-KEY-TOOLS")
async def test_a_tool_that_is_not_allowed_is_named(serve: Serve) -> None:
    client = limited(serve(["Hello!"] * 2), ClientLimits(tools=("web_search",)))
    function = {"type": "function", "name": "f", "parameters": {}}
    mcp = {"type": "mcp", "server_label": "x", "server_url": "https://x.example"}

    async def ask(path: str, *tools: Any) -> httpx.Response:
        return await client.post(path, json={"input": "hi", "tools": tools})

    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        error = error_of(await ask(path, function, mcp), 403)
        assert (error["code"], error["param"]) == ("tool_not_allowed", "tools[1]")
        assert error["message"] == "Your API key may not use the tool 'mcp'."
        dated = {"type": "web_search_preview_2025_03_11"}
        assert (await ask(path, function, dated)).is_success


@pytest.mark.requirement("API-KEY-TOOLS")
@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/v1/containers", "code_interpreter"),
        ("/v1/containers/cntr_1/files", "code_interpreter"),
        ("/v1/vector_stores/vs_1/search", "file_search"),
    ],
)
async def test_what_only_a_tool_uses_needs_the_permission_for_the_tool(
    serve: Serve, path: str, tool: str
) -> None:
    server = serve(["Hello!"])
    refused = await limited(server, ClientLimits(tools=("web_search",))).post(path, json={})
    error = error_of(refused, 403)
    assert (error["code"], error["param"]) == ("tool_not_allowed", None)
    assert error["message"] == f"Your API key may not use the tool '{tool}'."
    allowed = await limited(server, ClientLimits(tools=(tool,))).post(path, json={})
    assert allowed.status_code != 403


@pytest.mark.requirement("API-KEY-TOOLS")
async def test_tools_that_are_not_allowed_are_listed_so(serve: Serve) -> None:
    server = serve(["Hello!"], providers={"mcp": listing_provider()})
    path = "/antiphon/mcp-servers/toys/tools"
    for allowed, status in (("web_search", 403), ("mcp", 200)):
        client = limited(server, ClientLimits(tools=(allowed,)))
        assert (await client.get(path)).status_code == status
        listed = (await client.get("/antiphon/tools")).json()["data"]
        mcp = next(each for each in listed if each["type"] == "mcp")
        assert mcp["available"] == ("server_labels" in mcp) == (status == 200)
        assert mcp["reason"] == (mcp["reason"] and "Your API key may not use the tool 'mcp'.")


@pytest.mark.requirement("API-KEY-CONCURRENCY")
async def test_requests_at_a_time_are_limited(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("Hel"), gate, Close(), finish()]))
    app = limited_app(server, ClientLimits(), ClientLimits(concurrent_requests=1))
    client = asgi_client(app, headers={"authorization": "Bearer secret"})
    ask = {"model": "tiny", "input": "hi"}
    first = asyncio.create_task(client.post("/v1/responses", json=ask))
    while not server.service.active_runs:
        await asyncio.sleep(0)
    for path, body in (("/v1/responses", ask), ("/v1/chat/completions", {"model": "tiny", **CHAT})):
        reply = await client.post(path, json=body)
        error = error_of(reply, 429)
        assert error["code"] == "rate_limit_exceeded" and reply.headers["retry-after"] == "1"
        assert "Your organization has 1 requests in progress" in error["message"]
    async with WebSocketClient(app, authorization="Bearer secret") as wire:
        wire.create(**ask)
        (event,) = await wire.events()
        assert event["status"] == 429 and "concurrent_requests" in json.dumps(event)
    assert (await client.get("/v1/models")).is_success
    gate.set()
    assert (await first).is_success
    assert (await client.post("/v1/responses", json=ask)).is_success


@pytest.mark.requirement("API-KEY-CONCURRENCY")
async def test_background_runs_at_a_time_are_limited(store: Store, serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, gate, Text("Hello"), Close(), finish()]), on=store)
    client = limited(server, ClientLimits(background_runs=2))
    ask = {"model": "tiny", "input": "hi", "background": True}
    replies = await asyncio.gather(*(client.post("/v1/responses", json=ask) for _ in range(5)))
    assert sorted(reply.status_code for reply in replies) == [200, 200, 429, 429, 429]
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert "(background_runs)" in error_of(refused, 429)["message"]
    assert refused.headers["retry-after"] == "5"
    (first, second) = (reply.json()["id"] for reply in replies if reply.is_success)
    assert (await client.post(f"/v1/responses/{first}/cancel")).is_success
    assert (await client.post("/v1/responses", json=ask)).is_success
    assert (await client.post("/v1/responses", json=ask)).status_code == 429
    gate.set()
    assert (await client.get(f"/v1/responses/{second}?stream=true")).is_success
    assert (await client.post("/v1/responses", json=ask)).is_success


@pytest.mark.requirement("API-KEY-CONCURRENCY")
async def test_background_runs_of_every_tenant_are_limited(store: Store, serve: Serve) -> None:
    gate = asyncio.Event()
    backend = SteppedBackend([ANSWER, gate, Text("Hello"), Close(), finish()])
    server = serve(backend, on=store, max_tenant_background_runs=1)
    ask = {"model": "tiny", "input": "hi", "background": True}
    free = limited(server, ClientLimits(), tenant=ClientLimits(background_runs=2))
    for client, count in ((limited(server, ClientLimits()), 1), (free, 2)):
        replies = [await client.post("/v1/responses", json=ask) for _ in range(3)]
        accepted = [reply.json()["id"] for reply in replies if reply.is_success]
        assert len(accepted) == count
        assert "(background_runs)" in error_of(replies[-1], 429)["message"]
        for id in accepted:
            assert (await client.post(f"/v1/responses/{id}/cancel")).is_success


@pytest.mark.requirement("API-KEY-LIMITS")
async def test_limits_of_a_tenant_cover_all_its_requests(serve: Serve) -> None:
    tenant = ClientLimits(requests_per_minute=3, tokens_per_minute=1000)
    client = limited(serve(["Hello!"] * 2), ClientLimits(requests_per_minute=100), tenant)
    replies = [await client.get("/v1/models") for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    headers = [reply.headers["x-ratelimit-remaining-requests"] for reply in replies]
    assert headers == ["2", "1", "0", "0"]
    assert replies[0].headers["x-ratelimit-limit-requests"] == "3"
    assert replies[2].headers["x-ratelimit-reset-requests"] == "1m0s"
