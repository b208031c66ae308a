"""Routes, unknown routes, and what every response has in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import httpx
import pytest

from antiphon.errors import DISK_OBSTACLES, StoreError
from antiphon.store.upkeep.health import StoreHealth
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.admin.server_info import ProcessHealth, UnreadyReason

ErrorOf = Callable[[httpx.Response], dict[str, Any]]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v1/chat"),
        ("POST", "/v1/assistants"),
        ("GET", "/v1/evals/eval_1"),
        ("POST", "/v1/responses/"),
    ],
)
async def test_unknown_url_is_404(make_app: Any, error_of: ErrorOf, method: str, path: str) -> None:
    answer = await make_app().client.request(method, path)
    assert answer.status_code == 404
    error = error_of(answer)
    assert error["code"] == "unknown_url"
    assert f"{method} {path}" in error["message"]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/responses", "Did you mean /v1/responses?"),
        ("/responses/resp_1", "Did you mean /v1/responses/resp_1?"),
        ("/v1/v1/responses", "Did you mean /v1/responses?"),
        ("/v1/responses/", "Did you mean /v1/responses?"),
        ("/v1/respones", "Did you mean /v1/responses?"),
        ("/chat/completions", "Did you mean /v1/chat/completions?"),
        ("/v1/assistants", "does not offer the Assistants API."),
        ("/v1/fine_tuning/jobs", "does not offer fine-tuning."),
        ("/fine_tuning/jobs", "does not offer fine-tuning."),
        ("/v1/evals", "does not offer evals."),
        ("/v1/evals/eval_1/runs", "See not-offered.md."),
        ("/v1/something", "GET /docs lists all URLs."),
        ("/" + "a" * 300, "GET /docs lists all URLs."),
    ],
)
async def test_unknown_url_says_what_was_meant_or_is_not_offered(
    make_app: Any, error_of: ErrorOf, path: str, hint: str
) -> None:
    answer = await make_app().client.post(path)
    assert answer.status_code == 404
    assert hint in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ('{"model": "tiny",}', "byte 17"),
        ('{\n  "model": "tiny",\n  "input": "Größe",}\n', "line 3, column 20"),
    ],
)
async def test_error_for_broken_json_says_where_it_is_broken(
    make_app: Any, error_of: ErrorOf, body: str, place: str
) -> None:
    answer = await make_app().client.post("/v1/responses", content=body.encode())
    assert error_of(answer)["message"].endswith(f"(trailing comma in object ({place}))")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/responses", "GET, HEAD, POST"),
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("PUT", "/v1/conversations/conv_1", "DELETE, GET, HEAD, POST"),
        ("PUT", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/responses/resp_1/input_items", "GET, HEAD"),
    ],
)
async def test_wrong_method_is_405(
    make_app: Any, error_of: ErrorOf, method: str, path: str, allowed: str
) -> None:
    answer = await make_app().client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert error_of(answer)["code"] == "method_not_supported"


async def test_valid_request_id_is_kept_and_invalid_one_replaced(make_app: Any) -> None:
    client = make_app().client
    for given in ("abc-123", "x" * 128):
        answer = await client.get("/health", headers={"x-request-id": given})
        assert answer.headers["x-request-id"] == given
    for given in ("", "x" * 129, "two words", "caf\u00e9"):
        answer = await client.get("/health", headers={"x-request-id": given.encode()})
        assert answer.headers["x-request-id"].startswith("req_")


async def test_access_log_has_one_line_per_request_without_content(
    make_app: Any, service: Any
) -> None:
    service.words = ("CANARY-out",)
    app = make_app()
    answer = await app.client.post(
        "/v1/responses?key=CANARY-query",
        json={"model": "tiny", "input": "CANARY-in", "stream": True},
        headers={"authorization": "Bearer CANARY-key", "cookie": "CANARY-cookie"},
    )
    assert "CANARY-out" in answer.text
    app.now += 0.25
    (line,) = app.lines()
    assert {name: line[name] for name in line if name not in ("timestamp", "ms")} == {
        "event": "request",
        "level": "info",
        "request_id": answer.headers["x-request-id"],
        "method": "POST",
        "path": "/v1/responses",
        "status": 200,
        "tenant": "default",
        "model": "tiny",
        "response_id": "resp_1",
        "input_tokens": 7,
        "cached_tokens": 0,
        "output_tokens": 3,
    }
    assert "CANARY" not in app.log.getvalue()


async def test_monitoring_and_files_of_the_page_are_logged_at_debug_level(make_app: Any) -> None:
    app = make_app()
    await app.client.get("/health")
    await app.client.get("/ui/js/app.js")  # a page has forty of them
    assert [line["level"] for line in app.lines()] == ["debug", "debug"]


async def test_health_of_several_processes(make_app: Any) -> None:
    async def processes() -> tuple[ProcessHealth, ...]:
        return (ProcessHealth(name="worker 1", status="running", restarts=2),)

    answer = await make_app(processes=processes).client.get("/health")
    expected = {"name": "worker 1", "status": "running", "restarts": 2}
    assert answer.json() == {"status": "ok", "processes": [expected]}


async def test_health_and_readiness(make_app: Any, service: Any) -> None:
    client = make_app().client
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/ready")).status_code == 200
    service.is_ready = False
    assert (await client.get("/ready")).status_code == 503
    assert (await client.get("/health")).status_code == 200


async def test_server_without_a_store_is_not_ready(make_app: Any, service: Any) -> None:
    client = make_app().client
    broken = MemoryStore()
    await broken.close()
    service.store_health = StoreHealth(broken)
    answer = await client.get("/ready")
    assert (answer.status_code, answer.json()["reason"]) == (503, "store")
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("cause", DISK_OBSTACLES)
async def test_obstacle_of_the_disk_has_a_reason_of_its_own(
    make_app: Any, service: Any, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    store = MemoryStore()

    async def check_writable() -> None:
        raise StoreError(f"The store could not be written: {cause}.")

    monkeypatch.setattr(store, "check_writable", check_writable)
    service.store_health = StoreHealth(store)
    reason = (await make_app().client.get("/ready")).json()["reason"]
    assert reason in get_args(UnreadyReason) and reason not in {"store", "stopping"}


@pytest.mark.requirement("API-WEBSOCKET-REFUSED")
async def test_unsupported_websocket_upgrade_is_426(make_app: Any, error_of: ErrorOf) -> None:
    answer = await make_app().client.get("/v1/responses", headers={"upgrade": "WebSocket"})
    assert answer.status_code == 426
    assert answer.headers["upgrade"]
    assert error_of(answer)["code"] == "websocket_not_supported"


async def test_cors_is_off_by_default(make_app: Any) -> None:
    headers = {"origin": "https://page.test", "content-type": "application/json"}
    ask = json.dumps({"model": "tiny", "input": "hi"})
    answer = await make_app().client.post("/v1/responses", content=ask, headers=headers)
    assert "access-control-allow-origin" not in answer.headers


async def test_cors_covers_preflights_and_errors(make_app: Any) -> None:
    app = make_app(cors=("https://page.test",))
    preflight = await app.client.options(
        "/v1/responses",
        headers={
            "origin": "https://page.test",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://page.test"
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert preflight.headers["x-request-id"]
    refused = await app.client.get("/v1/nothing", headers={"origin": "https://page.test"})
    assert refused.status_code == 404
    assert refused.headers["access-control-allow-origin"] == "https://page.test"
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    other = await app.client.get("/health", headers={"origin": "https://evil.test"})
    assert "access-control-allow-origin" not in other.headers
