"""Operators export and delete whole tenants, and read who administered the server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from typing import Any

import httpx
import pytest

from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.store.base import Store
from antiphon.store.batches import BatchRecord, BatchStore
from antiphon.stream.deltas import Close, Open, Text
from antiphon.support.logs import open_log
from antiphon.wire.admin.client_limits import ClientLimits
from antiphon.wire.items import Message
from antiphon.wire.resources.batches import Batch
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_skills import skill_form
from tests.harness import asgi_client

ANSWER = Open(Message(role="assistant", content=()))
ASK = {"model": "tiny", "input": "hi"}
#: More than one piece of an archive, and one page of responses.
LARGE = bytes(range(256)) * 4096
MANY = 101


class Clients:
    """Clients of an operator, of the tenants ``t`` and ``u``, in front of a server."""

    def __init__(self, server: Server) -> None:
        entries = tuple(
            AuthKey(
                name=name,
                tenant=name,
                sha256=hashlib.sha256(name.encode()).hexdigest(),
                limits=ClientLimits(),
            )
            for name in ("root", "t", "u")
        )
        numbers = iter(range(10_000))
        self.keys = ApiKeys(
            server.store.keys, clock=lambda: server.now, timer=lambda: 0.0, reserved=("root",)
        )
        self.app = create_app(
            server.service,
            AuthConfig(keys=entries, roles={"operator": ("root",)}, stored_keys=True),
            ids=lambda prefix: f"{prefix}_w{next(numbers)}",
            log=open_log(server.log),
            api_keys=self.keys,
        )
        self.root, self.t, self.u = (self.client(each.name) for each in entries)

    def client(self, key: str) -> httpx.AsyncClient:
        return asgi_client(self.app, headers={"authorization": f"Bearer {key}"})

    async def archive(self, tenant: str) -> dict[str, list[Any]]:
        """Export a tenant. Return the data of its entries by type."""
        reply = await self.root.get(f"/antiphon/tenants/{tenant}/export")
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "application/jsonl"
        entries = [json.loads(line) for line in reply.text.splitlines()]
        assert (entries[0]["type"], entries[-1]["type"]) == ("tenant", "end")
        assert entries[0]["data"]["name"] == tenant
        found: dict[str, list[Any]] = {}
        for entry in entries[1:-1]:
            found.setdefault(entry["type"], []).append(entry["data"])
        assert entries[-1]["data"]["counts"] == {name: len(data) for name, data in found.items()}
        return found


async def fill(client: httpx.AsyncClient, responses: int = 1) -> None:
    """Create one of everything."""
    talk = (await client.post("/v1/conversations", json={})).json()["id"]
    added = {"items": [{"role": "user", "content": "earlier"}]}
    assert (await client.post(f"/v1/conversations/{talk}/items", json=added)).is_success
    for _ in range(responses):
        assert (await client.post("/v1/responses", json=ASK)).is_success
    form: Any = {"files": {"file": ("a.txt", LARGE)}, "data": {"purpose": "user_data"}}
    file = (await client.post("/v1/files", **form)).json()["id"]
    assert (await client.post("/v1/vector_stores", json={"file_ids": [file]})).is_success
    assert (await client.post("/v1/skills", files=skill_form())).is_success


@pytest.mark.requirement("API-TENANT-EXPORT")
async def test_an_archive_contains_everything_of_one_tenant(store: Store, serve: Serve) -> None:
    server = serve(["Hello!"] * (MANY + 1), on=store)
    clients = Clients(server)
    await fill(clients.t, MANY)
    await fill(clients.u)
    body = {"name": "ci", "tenant": "t"}
    secret = (await clients.root.post("/antiphon/keys", json=body)).json()["value"]
    found = await clients.archive("t")
    assert len(found["response"]) == MANY
    first = found["response"][0]
    assert first["response"]["output"][0]["content"][0]["text"] == "Hello!"
    assert first["input"][0]["content"][0]["text"] == "hi"
    (item,) = found["item"]
    assert item["conversation"] == found["conversation"][0]["id"]
    (file,) = found["file"]
    pieces = [each for each in found["content"] if each.get("file") == file["id"]]
    assert [piece["offset"] for piece in pieces] == [0, 3 << 18]
    assert b"".join(base64.b64decode(piece["base64"]) for piece in pieces) == LARGE
    (version,) = found["skill_version"]
    assert [each for each in found["content"] if each.get("skill_version") == version["id"]]
    assert len(found["vector_store"]) == len(found["vector_store_file"]) == 1
    assert sum(each["requests"] for each in found["usage"]) == MANY
    assert [key["name"] for key in found["api_key"]] == ["ci"]
    text = json.dumps(found)
    assert secret not in text and hashlib.sha256(secret.encode()).hexdigest() not in text
    assert await clients.archive("nobody") == {}


@pytest.mark.requirement("API-TENANT-EXPORT", "API-TENANT-DELETE")
async def test_batches_of_a_tenant_are_exported_and_deleted(store: Store, serve: Serve) -> None:
    clients = Clients(serve(on=store))
    batch = Batch(
        id="batch_1",
        endpoint="/v1/responses",
        input_file_id="file-1",
        completion_window="24h",
        status="completed",
        created_at=1,
        expires_at=2,
    )
    await BatchStore(store.values).add("t", batch.id, BatchRecord(batch=batch))
    (exported,) = (await clients.archive("t"))["batch"]
    assert (exported["id"], exported["status"]) == ("batch_1", "completed")
    assert (await clients.root.delete("/antiphon/tenants/t")).is_success
    assert await clients.archive("t") == {}


@pytest.mark.requirement("API-TENANT-DELETE")
async def test_a_deleted_tenant_is_gone_and_others_are_not(store: Store, serve: Serve) -> None:
    server = serve(["Hello!"] * 2, on=store)
    clients = Clients(server)
    await fill(clients.t)
    await fill(clients.u)
    body = {"name": "ci", "tenant": "t"}
    secret = (await clients.root.post("/antiphon/keys", json=body)).json()["value"]
    before = await clients.archive("u")
    reply = await clients.root.delete("/antiphon/tenants/t")
    assert reply.json() == {"id": "t", "object": "antiphon.tenant.deleted", "deleted": True}
    assert await clients.archive("t") == {}
    assert await clients.archive("u") == before
    assert (await clients.t.get("/v1/responses")).json()["data"] == []
    assert {key.name for key in await store.keys.list()} == set()
    assert secret not in server.log.getvalue()


@pytest.mark.requirement("API-TENANT-DELETE")
async def test_background_runs_of_a_deleted_tenant_are_cancelled(
    store: Store, serve: Serve
) -> None:
    backend = SteppedBackend([ANSWER, Text("Hel"), asyncio.Event(), Close(), finish()])
    clients = Clients(serve(backend, on=store))
    asks = [clients.t.post("/v1/responses", json={**ASK, "background": True}) for _ in range(3)]
    ids = [reply.json()["id"] for reply in await asyncio.gather(*asks)]
    reader = asyncio.create_task(clients.t.get(f"/v1/responses/{ids[0]}?stream=true"))
    assert (await clients.root.delete("/antiphon/tenants/t")).is_success
    async with asyncio.timeout(60):
        await reader
    assert (await clients.t.get(f"/v1/responses/{ids[0]}")).status_code == 404
    assert await store.runs.count_unended("t") == 0


@pytest.mark.requirement("API-TENANT-EXPORT", "API-TENANT-DELETE", "API-AUDIT")
async def test_only_operators_manage_tenants_and_read_the_audit_log(serve: Serve) -> None:
    clients = Clients(serve())
    for method, path in (
        ("GET", "/antiphon/tenants/t/export"),
        ("DELETE", "/antiphon/tenants/t"),
        ("GET", "/antiphon/audit"),
    ):
        reply = await clients.t.request(method, path)
        assert reply.status_code == 403 and "may not" in reply.json()["error"]["message"]


_USAGE = "/v1/organization/usage/completions?start_time=1&"


@pytest.mark.requirement("API-TENANT-EXPORT", "API-TENANT-DELETE", "API-AUDIT")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/antiphon/audit?after=%00", 400),
        ("GET", "/antiphon/audit?type=%00", 200),
        ("GET", "/antiphon/audit?key=%00", 200),
        ("GET", "/antiphon/audit?target=%00", 200),
        ("GET", _USAGE + "project_ids=%00", 200),
        ("GET", _USAGE + "api_key_ids=%00", 200),
        ("GET", _USAGE + "models=%00", 200),
        ("POST", "/antiphon/keys/%00/rotate", 404),
        ("DELETE", "/antiphon/keys/%00", 404),
        ("GET", "/antiphon/tenants/%00/export", 200),
        ("DELETE", "/antiphon/tenants/%00", 200),
    ],
)
async def test_name_with_nul_is_an_unknown_name(
    method: str, path: str, status: int, store: Store, serve: Serve
) -> None:
    clients = Clients(serve(on=store))
    assert (await clients.root.request(method, path)).status_code == status


@pytest.mark.requirement("API-AUDIT")
async def test_administrative_acts_are_recorded(store: Store, serve: Serve) -> None:
    server = serve(["Hello!"] * 2, on=store)
    clients = Clients(server)
    secret = (await clients.root.post("/antiphon/keys", json={"name": "ci"})).json()["value"]
    rotated = (await clients.root.post("/antiphon/keys/ci/rotate")).json()["value"]
    await clients.root.delete("/antiphon/keys/ci")
    for client in (clients.root, clients.t):
        response = (await client.post("/v1/responses", json=ASK)).json()["id"]
        await client.delete(f"/v1/responses/{response}")
    await clients.archive("t")
    await clients.root.delete("/antiphon/tenants/t")

    async def events(**query: str) -> list[dict[str, Any]]:
        reply = await clients.root.get("/antiphon/audit", params=query)
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["data"]
        return found

    oldest = await events(order="asc")
    assert [(event["type"], event["target"]) for event in oldest][:3] == [
        ("api_key.created", "ci"),
        ("api_key.rotated", "ci"),
        ("api_key.revoked", "ci"),
    ]
    types = [event["type"] for event in oldest[3:]]
    assert types == ["response.deleted", "tenant.exported", "tenant.deleted"], "and no one else's"
    actor = {"key": "root", "tenant": "root", "address": "127.0.0.1"}
    assert all(event["actor"] == actor for event in oldest)
    assert oldest[0]["effective_at"] == server.now
    page = (await clients.root.get("/antiphon/audit", params={"limit": "2"})).json()
    assert page["has_more"] and [each["type"] for each in page["data"]] == types[:0:-1]
    assert (await events(after=page["last_id"], limit="1")) == [oldest[3]]
    assert await events(type="api_key.rotated", key="root", target="ci") == [oldest[1]]
    assert await events(end_time=str(server.now)) == []
    for query in ({"after": "audit_none"}, {"limit": "0"}, {"start_time": "x"}):
        assert (await clients.root.get("/antiphon/audit", params=query)).status_code == 400
    text = json.dumps(oldest)
    assert secret not in text and rotated not in text
