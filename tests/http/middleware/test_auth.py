"""Authentication: every route with every kind of client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.errors import SetupError
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.limits.requests import RequestLimits
from antiphon.wire.admin.client_limits import ClientLimits
from antiphon.wire.parsing.json_body import BodyLimits as BodyLimits
from tests.harness import asgi_client

ErrorOf = Callable[[httpx.Response], dict[str, Any]]

ASK = {"model": "tiny", "input": "hi"}
GUARDED = [
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/resp_known"),
    ("DELETE", "/v1/responses/resp_known"),
    ("POST", "/v1/responses/resp_known/cancel"),
    ("GET", "/v1/responses/resp_known/input_items"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/small"),
    ("GET", "/v1/nothing"),
]


def key(name: str, tenant: str, secret: str, per_minute: int | None = None) -> AuthKey:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    limits = ClientLimits(requests_per_minute=per_minute)
    return AuthKey(name=name, tenant=tenant, sha256=digest, limits=limits)


ACCESS = AuthConfig(
    keys=(key("ann", "a", "sk-ann"), key("amy", "a", "sk-amy"), key("bob", "b", "sk-bob", 2))
)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def remote_client(
    app: Any, address: str = "10.1.2.3", host: str = "llm.example"
) -> httpx.AsyncClient:
    """A client on another machine."""
    return asgi_client(app.app, address=address, base_url=f"http://{host}")


@pytest.mark.requirement("API-KEYS")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic sk-ann"},
        {"authorization": "sk-ann"},
        bearer("sk-wrong"),
        bearer("sk-ann2"),
        bearer(hashlib.sha256(b"sk-ann").hexdigest()),
    ],
)
@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_missing_or_wrong_key_is_401_on_every_route(
    make_app: Any, service: Any, error_of: ErrorOf, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await make_app(access=ACCESS).client.request(method, path, headers=headers)
    assert answer.status_code == 401
    error = error_of(answer)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert service.calls == []


@pytest.mark.requirement("D-49", "API-TENANTS")
@pytest.mark.parametrize(("secret", "tenant"), [("sk-ann", "a"), ("sk-amy", "a"), ("sk-bob", "b")])
async def test_key_selects_its_tenant(
    make_app: Any, service: Any, secret: str, tenant: str
) -> None:
    app = make_app(access=ACCESS)
    for headers in ({"authorization": f"bearer  {secret}"}, {"x-api-key": secret}):
        answer = await app.client.post("/v1/responses", json=ASK, headers=headers)
        assert answer.status_code == 200
        assert service.calls[-1][1] == tenant
        line = app.lines()[-1]
        assert (line["tenant"], line["key"]) == (tenant, secret.removeprefix("sk-"))


@pytest.mark.requirement("AM-AUTH")
async def test_wrong_key_of_an_anthropic_client_is_401(make_app: Any) -> None:
    app = make_app(access=ACCESS)
    for headers in (
        {"x-api-key": "sk-wrong"},
        {"x-api-key": "sk-ann", "authorization": "Bearer sk-wrong"},
    ):
        answer = await app.client.post("/v1/messages", json={}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"


async def test_health_needs_no_key(make_app: Any) -> None:
    client = remote_client(make_app(access=ACCESS))
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/ready")).status_code == 200


#: Headers of nginx, HAProxy, Envoy, Cloudflare, Akamai, Fastly, AWS, Azure, Google and Fly.
PROXY_HEADERS = (
    *(
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-real-ip",
    ),
    *(
        "x-client-ip",
        "x-cluster-client-ip",
        "x-original-forwarded-for",
        "x-remote-addr",
        "x-scheme",
    ),
    *("x-envoy-external-address", "cf-connecting-ip", "cf-ray", "true-client-ip"),
    *("fastly-client-ip", "x-amzn-trace-id", "x-azure-clientip", "x-appengine-user-ip"),
    "fly-client-ip",
)


@pytest.mark.parametrize("keys", [(), ACCESS.keys])
@pytest.mark.parametrize(
    ("setting", "local", "passed_on", "remote"),
    [("loopback", 200, 401, 401), ("everybody", 200, 200, 200), ("nobody", 401, 401, 401)],
)
async def test_metrics_setting_controls_access(
    make_app: Any, keys: Any, setting: Any, local: int, passed_on: int, remote: int
) -> None:
    app = make_app(access=AuthConfig(keys=keys, metrics=setting, hosts=("*",)))
    get = app.client.get
    assert (await get("/metrics")).status_code == local
    for name in PROXY_HEADERS:
        proxied = await get("/metrics", headers={name: "127.0.0.1"})
        assert proxied.status_code == passed_on, name
    assert (await remote_client(app).get("/metrics")).status_code == remote
    if keys:
        assert (
            await remote_client(app).get("/metrics", headers=bearer("sk-ann"))
        ).status_code == 200


@pytest.mark.parametrize("setting", ["loopback", "everybody"])
async def test_metrics_follow_the_rules_for_host_headers(make_app: Any, setting: Any) -> None:
    """A web page whose name is rebound to this machine reads nothing."""
    rebound = {"host": "evil.example"}
    app = make_app(access=AuthConfig(metrics=setting))
    assert (await app.client.get("/metrics")).status_code == 200
    rejection = await app.client.get("/metrics", headers=rebound)
    assert rejection.status_code == 400
    assert rejection.json()["error"]["code"] == "host_not_allowed"
    app = make_app(access=AuthConfig(keys=ACCESS.keys, metrics=setting))
    status = (await app.client.get("/metrics", headers=rebound)).status_code
    assert status == (200 if setting == "everybody" else 401)
    with_key = await app.client.get("/metrics", headers={**rebound, **bearer("sk-ann")})
    assert with_key.status_code == 200


def test_key_must_be_a_sha256_digest() -> None:
    with pytest.raises(SetupError, match="'ann'"):
        AuthKey(name="ann", tenant="a", sha256="sk-ann")


# --- rates ---------------------------------------------------------------------------------------


@pytest.mark.requirement("D-95", "API-RATE-LIMIT")
async def test_rate_limit_is_per_key(make_app: Any, error_of: ErrorOf) -> None:
    app = make_app(access=ACCESS, limits=RequestLimits(requests_per_minute=3))

    async def status(secret: str) -> int:
        return int((await app.client.get("/v1/models", headers=bearer(secret))).status_code)

    assert [await status("sk-bob") for _ in range(3)] == [200, 200, 429]
    assert [await status("sk-ann") for _ in range(4)] == [200, 200, 200, 429]
    refused = await app.client.get("/v1/models", headers=bearer("sk-bob"))
    assert refused.headers["retry-after"] == "30"
    error = error_of(refused)
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "try again in 30s" in error["message"]
    app.now += 30
    assert [await status("sk-bob") for _ in range(2)] == [200, 429]


@pytest.mark.requirement("API-RETRY", "CL-RETRY-AFTER")
async def test_full_queue_is_429(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    answer = await make_app(
        limits=RequestLimits(max_concurrent_requests=0, max_queued_requests=0, retry_after_s=9)
    ).client.post("/v1/responses", json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "9")
    assert "try again in 9s" in error_of(answer)["message"]
    assert service.calls == []


@pytest.mark.requirement("API-BODY-LIMIT")
async def test_body_over_the_limit_is_413(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    client = make_app(limits=RequestLimits(max_body_bytes=100)).client
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = await client.post(path, content=b" " * 101)
        assert answer.status_code == 413
        assert error_of(answer)["code"] == "request_too_large"
        assert len(answer.content) < 300
    assert service.calls == []


async def test_json_limits_are_configurable(make_app: Any, service: Any, error_of: ErrorOf) -> None:
    client = make_app(limits=RequestLimits(body=BodyLimits(items=2))).client
    turn = {"role": "user", "content": "hi"}
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        answer = await client.post(path, json={"model": "tiny", "input": [turn] * 3})
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "input"
        assert (await client.post(path, json={"model": "tiny", "input": [turn] * 2})).is_success


# --- browsers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "origin", "status"),
    [
        ("application/json", "https://page.test", 200),
        ("application/json; charset=utf-8", "https://page.test", 200),
        ("text/plain", "https://page.test", 400),
        ("application/x-www-form-urlencoded", "https://page.test", 400),
        (None, "https://page.test", 400),
        ("text/plain", None, 200),
        ("application/x-www-form-urlencoded", None, 200),
        (None, None, 200),
    ],
)
async def test_cross_site_post_without_preflight_is_refused(
    make_app: Any, service: Any, content_type: str | None, origin: str | None, status: int
) -> None:
    headers = {"content-type": content_type, "origin": origin}
    answer = await make_app().client.post(
        "/v1/responses",
        content=b'{"model": "tiny", "input": "hi"}',
        headers={name: value for name, value in headers.items() if value is not None},
    )
    assert answer.status_code == status
    assert bool(service.calls) == (status == 200)


@pytest.mark.parametrize(
    ("host", "hosts", "status"),
    [
        ("localhost", (), 200),
        ("localhost:8000", (), 200),
        ("127.0.0.1:8000", (), 200),
        ("[::1]:8000", (), 200),
        ("192.168.1.5", (), 200),
        ("app.localhost", (), 200),
        ("evil.test", (), 400),
        ("localhost.evil.test", (), 400),
        ("evil.test:8000", (), 400),
        ("my.box:8000", ("my.box",), 200),
        ("evil.test", ("*",), 200),
    ],
)
async def test_unknown_host_is_refused_on_loopback(
    make_app: Any, host: str, hosts: tuple[str, ...], status: int
) -> None:
    client = make_app(access=AuthConfig(hosts=hosts)).client
    answer = await client.get("/v1/models", headers={"host": host})
    assert answer.status_code == status


async def test_host_is_not_checked_with_keys_or_for_remote_clients(make_app: Any) -> None:
    headers = {"host": "any.test", **bearer("sk-ann")}
    keyed = await make_app(access=ACCESS).client.get("/v1/models", headers=headers)
    assert keyed.status_code == 200
    assert (await remote_client(make_app(), host="any.test").get("/v1/models")).status_code == 200
