"""Prefix caches of several tenants: separate unless the operator shares them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from antiphon.config.keys import ApiKey
from antiphon.config.settings import Settings
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.support.logs import open_log
from antiphon.testing.engine import ScriptedEngine
from tests.conformance.conftest import Serve
from tests.conformance.server import Server, engine, local
from tests.harness import asgi_client

TENANTS = ("acme", "globex")
KEYS = tuple(
    AuthKey(name=name, tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest())
    for name in TENANTS
)
PROMPT = "The secret of acme is a number that nobody else knows."


async def send(server: Server, tenant: str, path: str = "responses", **body: Any) -> httpx.Response:
    app = create_app(
        server.service, AuthConfig(keys=KEYS), ids=lambda p: f"{p}_x", log=open_log(server.log)
    )
    async with asgi_client(app) as client:
        reply = await client.post(
            f"/v1/{path}",
            json={"model": "tiny", **body},
            headers={"authorization": f"Bearer {tenant}"},
        )
    assert reply.status_code == 200, reply.text
    return reply


async def cached_tokens(server: Server, tenants: Sequence[str]) -> list[bool]:
    replies = [await send(server, tenant, input=PROMPT) for tenant in tenants]
    details = [each.json()["usage"]["input_tokens_details"] for each in replies]
    return [bool(each["cached_tokens"]) for each in details]


def scopes(model: ScriptedEngine) -> list[str | None]:
    return [sampling.cache_scope for _, sampling in model.requests]


@pytest.mark.requirement("API-CACHE-TENANTS")
async def test_cached_tokens_never_count_those_of_another_tenant(serve: Serve) -> None:
    model = engine(["ok"])
    server = serve(local(model), share_prefix_cache=False)
    order = ("acme", "globex", "acme", "globex")
    assert await cached_tokens(server, order) == [False, False, True, True]
    first, second, *again = scopes(model)
    assert again == [first, second] and first and second and first != second
    assert not any(tenant in first + second for tenant in TENANTS)


@pytest.mark.requirement("API-CACHE-TENANTS")
async def test_completions_are_scoped_too(serve: Serve) -> None:
    model = engine(["ok"])
    server = serve(local(model), share_prefix_cache=False)
    for tenant in TENANTS:
        await send(server, tenant, "completions", prompt=PROMPT)
        await send(
            server, tenant, "chat/completions", messages=[{"role": "user", "content": PROMPT}]
        )
    assert len(set(scopes(model))) == 2 and None not in scopes(model)
    assert [sampling.tenant for _, sampling in model.requests] == ["acme"] * 2 + ["globex"] * 2


async def test_operator_may_share_prefix_caches(serve: Serve) -> None:
    model = engine(["ok"])
    assert await cached_tokens(serve(local(model), share_prefix_cache=True), TENANTS) == [
        False,
        True,
    ]
    assert scopes(model) == [None, None]
    # The engine knows them all the same, to serve those that wait in turn.
    assert [sampling.tenant for _, sampling in model.requests] == list(TENANTS)


def test_caches_are_shared_by_default_only_within_a_tenant() -> None:
    def settings(*tenants: str, **more: Any) -> Settings:
        keys = tuple(ApiKey(sha256=f"{n:064x}", tenant=t) for n, t in enumerate(tenants))
        return Settings(keys=keys, **more)

    assert settings().shares_prefix_cache
    assert settings("acme", "acme").shares_prefix_cache
    assert not settings(*TENANTS).shares_prefix_cache
    assert settings(*TENANTS, share_prefix_cache=True).shares_prefix_cache
    assert not settings(share_prefix_cache=False).shares_prefix_cache
