"""``/antiphon/added-models``: who may add models, and what the clients read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.models.catalog import Catalog
from tests.http.routes.admin.test_managed_models import catalog
from tests.models.test_added_models import FakeServer

__all__ = ["catalog"]

SOURCE = {"source": "owner/Tiny-GGUF:Q4_K_M"}


@pytest.fixture
def server(tmp_path: Path) -> FakeServer:
    return FakeServer(tmp_path)


@pytest.fixture
def client(
    make_app: Any, catalog: Catalog, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> Any:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    keys = tuple(
        AuthKey(name=name, tenant="t", sha256=hashlib.sha256(name.encode()).hexdigest())
        for name in ("boss", "guest")
    )
    access = AuthConfig(keys=keys, roles={"operator": ("boss",)})
    return make_app(manager=catalog.manager, additions=server.models(), access=access).client


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def test_model_is_added_changed_and_removed(client: Any, server: FakeServer) -> None:
    boss = {"headers": key("boss")}
    added = await client.post("/antiphon/added-models", json={**SOURCE, "top_k": 3}, **boss)
    assert (added.json()["id"], added.json()["top_k"]) == ("Tiny", 3)
    assert server.names == ["own", "Tiny"]
    path = "/antiphon/added-models/Tiny"
    assert (await client.post(path, json={"top_p": 0.5}, **boss)).json()["top_k"] is None
    listed = (await client.get("/antiphon/added-models", **boss)).json()["data"]
    assert [(each["id"], each["top_p"]) for each in listed] == [("Tiny", 0.5)]
    assert (await client.delete(path, **boss)).json()["deleted"] is True
    assert (await client.delete(path, **boss)).status_code == 404
    assert server.names == ["own"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "source"),
        ({"source": "/a.gguf"}, "source"),
        ({**SOURCE, "name": "a b"}, "name"),
        ({**SOURCE, "name": "a/../b"}, "name"),
        ({**SOURCE, "name": ".."}, "name"),
        ({**SOURCE, "name": "a//b"}, "name"),
        ({**SOURCE, "name": "a/"}, "name"),
        ({**SOURCE, "temperature": 3}, "temperature"),
        ({**SOURCE, "engine": "vllm"}, "engine"),
    ],
)
async def test_invalid_models_are_refused_by_field(client: Any, body: Any, param: str) -> None:
    answer = await client.post("/antiphon/added-models", json=body, headers=key("boss"))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_only_operators_add_and_search_models(client: Any) -> None:
    guest = {"headers": key("guest")}
    for answer in (
        await client.post("/antiphon/added-models", json=SOURCE, **guest),
        await client.get("/antiphon/added-models", **guest),
        await client.get("/antiphon/found-models", **guest),
        await client.post("/antiphon/added-models/x", json={}, **guest),
        await client.delete("/antiphon/added-models/x", **guest),
    ):
        assert answer.status_code == 403
    found = (await client.get("/antiphon/found-models?query=qwen3-0", headers=key("boss"))).json()
    assert found["data"][0]["is_suggested"] is True
