"""Quotas of tenants, and what they use of them."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import httpx
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.runs.execution.run import EventSink, ReaderGone
from antiphon.store.base import Store
from antiphon.support.logs import open_log
from antiphon.testing.store_checks.files import make_file
from antiphon.wire.parsing.requests import parse_create_response
from tests.conformance.conftest import Serve
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Server, engine, local
from tests.conformance.test_tool_search import tool_call
from tests.harness import asgi_client

#: The least that a request needs.
BODY = b'{"model": "tiny", "input": "hi"}'


class _DisconnectedReader(EventSink):
    """A reader that has left."""

    def write(self, events: Any) -> None:
        raise ReaderGone


def quotas(**limits: int) -> dict[str, Any]:
    """Return the option of a server with these quotas."""
    return {"quotas": TenantQuotas(Quotas(**limits))}


def check_refusal(answer: httpx.Response, named: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (429, "insufficient_quota"), error
    assert error["type"] == "insufficient_quota" and named in error["message"], error
    assert answer.headers["x-should-retry"] == "false", "a retry would not help"
    assert "retry-after" not in answer.headers


@pytest.mark.requirement("API-QUOTAS")
async def test_concurrent_responses_do_not_exceed_the_quota(store: Store, serve: Serve) -> None:
    backend = ScriptedBackend(["Hello!"] * 9)
    server = serve(backend, on=store, **quotas(max_responses=3))
    modes: list[dict[str, Any]] = [{}, {"stream": True}, {"background": True}] * 3
    answers = await asyncio.gather(*(server.post(**mode) for mode in modes))
    accepted = [answer for answer in answers if answer.status_code == 200]
    assert len(accepted) == 3
    for answer in answers:
        if answer not in accepted:
            check_refusal(answer, "max_responses = 3")
    assert (await store.usage("default")).responses == 3
    assert (await server.post(store=False)).status_code == 200, "it is not stored"
    for answer in accepted:
        if answer.headers["content-type"] == "application/json":
            await server.client.delete(f"/v1/responses/{answer.json()['id']}")
            break
    else:
        pytest.fail("only streams were accepted")
    assert (await server.post()).status_code == 200
    check_refusal(await server.post(background=True, store=False), "max_responses = 3")


@pytest.mark.requirement("API-QUOTAS")
async def test_what_is_not_stored_takes_no_room(store: Store, serve: Serve) -> None:
    server = serve(["Hello!", "Hello!"], on=store, **quotas(max_responses=1))
    for _ in range(3):
        assert (await server.post(previous_response_id="resp_unknown")).status_code == 400
    run = await server.service.create("default", parse_create_response(BODY))
    with pytest.raises(ReaderGone):
        await run.drive(_DisconnectedReader())
    assert (await server.post()).status_code == 200
    check_refusal(await server.post(), "max_responses = 1")


@pytest.mark.requirement("API-QUOTAS")
async def test_stored_bytes_are_limited(serve: Serve) -> None:
    server = serve(["Hello!", "Hello!"], **quotas(max_responses_bytes=1))
    assert (await server.post()).status_code == 200
    check_refusal(await server.post(), "max_responses_bytes = 1")


@pytest.mark.requirement("API-QUOTAS")
async def test_files_and_vector_stores_are_counted(store: Store, serve: Serve) -> None:
    server = serve(on=store, **quotas(max_files=2, max_vector_stores=2))

    async def upload() -> httpx.Response:
        return await server.client.post(
            "/v1/files", files={"file": ("a.txt", b"x")}, data={"purpose": "user_data"}
        )

    answers = await asyncio.gather(*(upload() for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
    check_refusal(await upload(), "max_files = 2")
    created = [server.client.post("/v1/vector_stores", json={}) for _ in range(5)]
    answers = await asyncio.gather(*created)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
    check_refusal(await server.client.post("/v1/vector_stores", json={}), "max_vector_stores = 2")


@pytest.mark.requirement("API-QUOTAS")
async def test_a_tool_without_a_container_fails_the_response(serve: Serve) -> None:
    registry = containers(max_containers=1)
    script = engine([tool_call("python", {"input": "say hi"}), "Done."])
    server = serve(local(script), **code_interpreter_options(registry))
    created = await server.client.post("/v1/containers", json={"name": "mine"})
    assert created.status_code == 200
    refused = await server.client.post("/v1/containers", json={"name": "mine"})
    check_refusal(refused, "max_containers = 1")
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    check_refusal(await server.post(tools=tools), "max_containers = 1")
    tools = [{"type": "code_interpreter", "container": created.json()["id"]}]
    assert (await server.post(tools=tools)).status_code == 200


@pytest.mark.requirement("API-TENANT-USAGE")
async def test_usage_shows_the_tenant_of_the_key(store: Store, serve: Serve) -> None:
    registry = containers(max_containers=4)
    limits = TenantQuotas(
        Quotas(max_responses=9, max_files=8),
        {"mine": Quotas(max_responses=5, max_files_bytes=100)},
    )
    server = serve(on=store, quotas=limits, **code_interpreter_options(registry))
    mine, theirs = _clients(server)
    assert (await server.client.get("/antiphon/usage")).json()["tenant"] == "default"
    answer = await mine.post("/v1/responses", json={"model": "tiny", "input": "hi"})
    assert answer.status_code == 200
    await store.files.put("mine", make_file("a", b"123"), b"123")
    upload = {"bytes": 40, "filename": "a", "purpose": "vision", "mime_type": "image/png"}
    assert (await mine.post("/v1/uploads", json=upload)).status_code == 200
    await mine.post("/v1/vector_stores", json={})
    await mine.post("/v1/containers", json={"name": "mine"})
    usage = (await mine.get("/antiphon/usage")).json()
    size = usage["storage"]["responses_bytes"]["used"]
    assert size > 100
    assert usage == {
        "object": "antiphon.usage",
        "tenant": "mine",
        "storage": {
            "responses": {"used": 1, "limit": 5},
            "responses_bytes": {"used": size, "limit": None},
            "files": {"used": 1, "limit": None},
            "files_bytes": {"used": 3, "limit": 100},
            "uploads_bytes": {"used": 40, "limit": 100},
            "skills_bytes": {"used": 0, "limit": 100},
            "vector_stores": {"used": 1, "limit": None},
            "containers": {"used": 1, "limit": 4},
        },
        "background_runs": {"queued": 0, "in_progress": 0, "limit": None},
        "requests": {"in_progress": 0, "queued": 0, "limit": None},
    }
    other = (await theirs.get("/antiphon/usage")).json()
    assert other["storage"]["responses"] == {"used": 0, "limit": 9}
    assert other["storage"]["containers"]["used"] == 0
    refused = await mine.get("/antiphon/usage", headers={"authorization": ""})
    assert refused.status_code == 401


def _clients(server: Server) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
    """Return clients of two tenants."""
    names = ("mine", "theirs")
    keys = tuple(
        AuthKey(name=name, tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in names
    )
    app = create_app(
        server.service, AuthConfig(keys=keys), ids=lambda prefix: prefix, log=open_log(server.log)
    )
    mine, theirs = (asgi_client(app, headers={"authorization": f"Bearer {name}"}) for name in names)
    return mine, theirs
