"""Objects of one tenant do not exist for the requests of another. ``test_openapi`` tries all
operations on objects."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools

import httpx
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.store.base import Store
from antiphon.support.logs import open_log
from tests.conformance.asgi_clients import WebSocketClient
from tests.harness import asgi_client
from tests.runs.scripted_service import OneModel


class TwoTenantServer:
    """A server with two tenants."""

    def __init__(self, store: Store) -> None:
        numbers = itertools.count(1)
        keys = tuple(
            AuthKey(
                name=name, tenant=name, sha256=hashlib.sha256(f"key-{name}".encode()).hexdigest()
            )
            for name in ("mine", "theirs")
        )

        def ids(prefix: str) -> str:
            return f"{prefix}_{next(numbers)}"

        self.service = Service(
            RunDependencies(
                models=OneModel(ScriptedBackend(["one"])),
                store=store,
                clock=lambda: 1_700_000_000,
                ids=ids,
                policy=Policy(keepalive_s=0),
            )
        )
        self.service.start()
        self.app = create_app(
            self.service, AuthConfig(keys=keys), ids=ids, log=open_log(io.StringIO())
        )

    def client(self, name: str) -> httpx.AsyncClient:
        return asgi_client(self.app, headers={"authorization": f"Bearer key-{name}"})


@pytest.mark.requirement("API-TENANTS-ROUTES")
async def test_no_request_refers_to_objects_of_another_tenant(store: Store) -> None:
    served = TwoTenantServer(store)
    async with asyncio.timeout(60), served.client("mine") as mine, served.client("theirs") as thief:
        talk = (await mine.post("/v1/conversations", json={})).json()["id"]
        body = {"model": "scripted", "input": "x"}
        plain = (await mine.post("/v1/responses", json=body)).json()
        queued = (await mine.post("/v1/responses", json={**body, "background": True})).json()
        added = {"items": [{"role": "user", "content": "x"}]}
        page = (await mine.post(f"/v1/conversations/{talk}/items", json=added)).json()
        item = page["data"][0]["id"]
        for field, status in (
            ({"previous_response_id": plain["id"]}, 400),
            ({"conversation": talk}, 404),
            ({"input": [{"type": "item_reference", "id": item}]}, 404),
            ({"input": [{"type": "item_reference", "id": plain["output"][0]["id"]}]}, 404),
        ):
            for path in ("/v1/responses", "/v1/responses/input_tokens"):
                answer = await thief.post(path, json={**body, **field})
                assert answer.status_code == status, (path, field, answer.text)
        stream = await thief.get(f"/v1/responses/{queued['id']}", params={"stream": "true"})
        assert stream.status_code == 404
        async with WebSocketClient(served.app, authorization="Bearer key-theirs") as wire:
            wire.send({"type": "response.create", **body, "previous_response_id": plain["id"]})
            assert (await wire.event())["error"]["code"] == "previous_response_not_found"
        assert (await mine.get(f"/v1/responses/{plain['id']}")).status_code == 200
        own = {"input": [{"type": "item_reference", "id": plain["output"][0]["id"]}]}
        assert (await mine.post("/v1/responses", json={**body, **own})).status_code == 200
        assert (await mine.get(f"/v1/conversations/{talk}/items/{item}")).status_code == 200
    await served.service.drain(0)
    await store.close()
