"""``/v1/prompts``: access and results."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.resources.prompts import Prompts
from tests.harness import asgi_client
from tests.http.conftest import FakeService

TEMPLATE = {"instructions": "Be {{tone}}."}


def key(name: str) -> AuthKey:
    return AuthKey(name=name, tenant="t", sha256=hashlib.sha256(name.encode()).hexdigest())


@pytest.fixture
def service(tmp_path: Path) -> FakeService:
    service = FakeService()
    service.prompts = Prompts(tmp_path, ids=lambda prefix: f"{prefix}_1")
    return service


async def test_prompt_is_created_read_listed_and_deleted(make_app: Any, error_of: Any) -> None:
    client = make_app().client
    created = await client.post("/v1/prompts", json={"id": "support", "template": TEMPLATE})
    assert created.json() == {
        "object": "prompt",
        "id": "support",
        "version": "1",
        "versions": ["1"],
        "variables": ["tone"],
        "template": TEMPLATE,
    }
    await client.post("/v1/prompts", json={"id": "support", "template": {"temperature": 0.5}})
    assert (await client.get("/v1/prompts/support")).json()["version"] == "2"
    first = await client.get("/v1/prompts/support", params={"version": "1"})
    assert first.json()["template"] == TEMPLATE
    assert (await client.post("/v1/prompts", json={"template": {}})).json()["id"] == "pmpt_1"
    assert (await client.get("/v1/prompts")).json() == {
        "object": "list",
        "data": [
            {"object": "prompt", "id": "pmpt_1", "version": "1", "versions": ["1"]},
            {"object": "prompt", "id": "support", "version": "2", "versions": ["1", "2"]},
        ],
        "first_id": "pmpt_1",
        "last_id": "support",
        "has_more": False,
    }
    deleted = await client.delete("/v1/prompts/support", params={"version": "1"})
    assert deleted.json() == {"id": "support", "object": "prompt.deleted", "deleted": True}
    assert (await client.get("/v1/prompts/support")).json()["versions"] == ["2"]
    await client.delete("/v1/prompts/support")
    again = await client.get("/v1/prompts/support")
    assert again.status_code == 404 and error_of(again)["code"] == "prompt_not_found"


async def test_invalid_prompt_is_refused(make_app: Any, error_of: Any) -> None:
    client = make_app().client
    answer = await client.post("/v1/prompts", json={"id": "a/b", "template": {}})
    assert answer.status_code == 400 and error_of(answer)["param"] == "id"
    answer = await client.post("/v1/prompts", json={"template": {"temperature": 9}})
    assert answer.status_code == 400 and error_of(answer)["param"] == "template.temperature"
    answer = await client.get("/v1/prompts/..%2Fsupport")
    assert answer.status_code == 404


async def statuses_of_all_endpoints(client: httpx.AsyncClient, **options: Any) -> set[int]:
    await client.post("/v1/prompts", json={"id": "p", "template": {}}, **options)
    answers = (
        await client.get("/v1/prompts", **options),
        await client.get("/v1/prompts/p", **options),
        await client.post("/v1/prompts", json={"id": "p", "template": {}}, **options),
        await client.delete("/v1/prompts/p", **options),
    )
    return {answer.status_code for answer in answers}


async def test_only_prompt_editors_have_access(make_app: Any) -> None:
    access = AuthConfig(keys=(key("admin"), key("app")), roles={"prompt_editor": ("admin",)})
    client = make_app(access=access).client
    for name, status in (("admin", 200), ("app", 403), ("nobody", 401)):
        assert await statuses_of_all_endpoints(
            client, headers={"authorization": f"Bearer {name}"}
        ) == {status}


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.9"}, 403),
        ("192.0.2.7", {}, 403),
    ],
)
async def test_without_keys_only_local_clients_have_access(
    make_app: Any, address: str, headers: Any, status: int
) -> None:
    async with asgi_client(make_app().app, address=address) as client:
        assert await statuses_of_all_endpoints(client, headers=headers) == {status}
