"""API keys in the store: managed by operators, effective in all processes, limited in tokens."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from antiphon.errors import AccessRevoked, StoreError
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.runs.execution import supervisor
from antiphon.runs.service import Service
from antiphon.runs.tool_loop.executor import CallBudget, CallEnvironment, CallRunner, CallServices
from antiphon.store.base import Store
from antiphon.store.files import FileQuery
from antiphon.stream.deltas import Close, Open, Text
from antiphon.support.logs import open_log
from antiphon.wire.admin.client_limits import ClientLimits
from antiphon.wire.items import Message
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.harness import asgi_client

ANSWER = Open(Message(role="assistant", content=()))
ASK = {"model": "tiny", "input": "hi"}


class Process:
    """One process in front of a server's store. ``time``: its monotonic clock, in seconds.
    ``ends_runs``: whether the runs of the server end with their keys."""

    def __init__(
        self, server: Server, *, limits: ClientLimits | None = None, ends_runs: bool = False
    ) -> None:
        self.time = 0.0
        numbers = iter(range(1000))
        root = AuthKey(
            name="root",
            tenant="ops",
            sha256=hashlib.sha256(b"root").hexdigest(),
            limits=limits or ClientLimits(),
        )
        self.keys = ApiKeys(
            server.store.keys,
            clock=lambda: server.now,
            timer=lambda: self.time,
            reserved=("root",),
        )
        app = create_app(
            server.service,
            AuthConfig(keys=(root,), roles={"operator": ("root",)}, stored_keys=True),
            ids=lambda prefix: f"{prefix}_k{next(numbers)}",
            log=open_log(server.log),
            api_keys=self.keys,
            keys=server.keys if ends_runs else None,
            clock=lambda: self.time,
        )
        self.client = asgi_client(app)
        self.app = app

    async def send(
        self, method: str, path: str, key: str = "root", body: Any = None
    ) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.client.request(method, path, headers=headers, json=body)

    async def ask(self, key: str) -> httpx.Response:
        return await self.send("POST", "/v1/responses", key, ASK)

    async def create(self, **fields: Any) -> str:
        """Create a key and return its secret."""
        created = await self.send("POST", "/antiphon/keys", body={"name": "k", **fields})
        assert created.status_code == 200, created.text
        value: str = created.json()["value"]
        return value


def check(answer: httpx.Response, status: int, param: str | None = None) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.requirement("API-STORED-KEYS")
async def test_a_key_works_until_it_is_revoked(serve: Serve) -> None:
    server = serve(["Hello!"] * 3)
    process = Process(server)
    secret = await process.create(tenant="team")
    assert (await process.ask(secret)).status_code == 200
    assert (await server.store.usage("team")).responses == 1
    listed = (await process.send("GET", "/antiphon/keys")).json()
    (key,) = listed["data"]
    assert (key["name"], key["tenant"]) == ("k", "team")
    assert key["redacted_value"].endswith(secret[-4:]) and secret not in str(listed)
    assert hashlib.sha256(secret.encode()).hexdigest() not in str(listed)
    check(await process.send("GET", "/antiphon/keys", secret), 403)
    assert (await process.send("DELETE", "/antiphon/keys/k")).json()["deleted"]
    check(await process.ask(secret), 401)
    check(await process.send("DELETE", "/antiphon/keys/k"), 404, "name")
    assert (await process.client.post("/v1/responses", json=ASK)).status_code == 401


@pytest.mark.requirement("API-STORED-KEYS")
async def test_other_processes_follow_within_two_seconds(serve: Serve) -> None:
    server = serve(["Hello!"] * 4)
    one, other = Process(server), Process(server)
    check(await other.ask("sk-unknown"), 401)
    secret = await one.create()
    other.time += 3
    assert (await other.ask(secret)).status_code == 200
    rotated = (await one.send("POST", "/antiphon/keys/k/rotate")).json()["value"]
    check(await one.ask(secret), 401)
    other.time += 3
    check(await other.ask(secret), 401)
    assert (await other.ask(rotated)).status_code == 200


@pytest.mark.requirement("API-STORED-KEYS")
async def test_names_are_unique_and_checked(serve: Serve) -> None:
    process = Process(serve())
    await process.create()
    for name in ("k", "root"):
        check(await process.send("POST", "/antiphon/keys", body={"name": name}), 409, "name")
    for body, param in (
        ({}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x", "tokens_per_day": 0}, "tokens_per_day"),
        ({"name": "x", "models": "y"}, "models"),
    ):
        check(await process.send("POST", "/antiphon/keys", body=body), 400, param)


@pytest.mark.requirement("API-STORED-KEYS")
async def test_known_keys_survive_a_short_outage_of_the_store(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(["Hello!"] * 3)
    process = Process(server)
    secret = await process.create()
    assert (await process.ask(secret)).status_code == 200

    async def fail() -> Any:
        raise StoreError("The store does not answer.")

    monkeypatch.setattr(server.store.keys, "list", fail)
    process.time += 30
    assert (await process.ask(secret)).status_code == 200
    process.time += 60
    assert (await process.ask(secret)).status_code == 503


@pytest.mark.requirement("API-KEY-LIMITS")
@pytest.mark.parametrize("period", ["minute", "day"])
async def test_tokens_are_limited_over_all_processes(serve: Serve, period: str) -> None:
    server = serve(["Hello!"] * 9)
    one, other = Process(server), Process(server)
    secret = await one.create(**{f"tokens_per_{period}": 2})
    first = await one.ask(secret)
    assert first.status_code == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "2"
    assert first.headers["x-ratelimit-remaining-tokens"] == "2"
    refused = await other.ask(secret)
    check(refused, 429)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert f"2 tokens per {period}" in refused.json()["error"]["message"]
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    one.time += 3
    check(await one.ask(secret), 429)
    assert (await one.send("GET", "/v1/models", secret)).status_code == 200, "it uses no tokens"
    server.now += 60 if period == "minute" else 86_400
    one.time += 3
    assert (await one.ask(secret)).status_code == 200


@pytest.mark.requirement("API-KEY-LIMITS")
async def test_refusal_reports_the_token_limit_with_the_fewest_tokens_left(serve: Serve) -> None:
    server = serve(["Hello!"] * 2)
    process = Process(server)
    secret = await process.create(tokens_per_minute=1000, tokens_per_day=2)
    await process.ask(secret)
    process.time += 3
    refused = await process.ask(secret)
    check(refused, 429)
    assert refused.headers["x-ratelimit-limit-tokens"] == "2"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    midnight_s = 86_400 - int(server.now) % 86_400
    assert refused.headers["retry-after"] == str(midnight_s)


@pytest.mark.requirement("API-KEY-LIMITS")
async def test_refusal_says_when_enough_tokens_no_longer_count(serve: Serve) -> None:
    server = serve(["Hello!"] * 3)
    process = Process(server)
    secret = await process.create(name="first", tokens_per_minute=1000)
    used = (await process.ask(secret)).json()["usage"]["total_tokens"]
    secret = await process.create(tokens_per_minute=used + 1)
    for _ in range(2):
        await process.ask(secret)
        server.now += 25
        process.time += 3
    refused = await process.ask(secret)
    check(refused, 429)
    assert refused.headers["retry-after"] == "10"  # the first answer then no longer counts
    assert refused.headers["x-ratelimit-reset-tokens"] == "10s"
    server.now += 10
    process.time += 3
    admitted = await process.ask(secret)
    assert admitted.status_code == 200
    assert admitted.headers["x-ratelimit-reset-tokens"] == "25s"


@pytest.mark.requirement("API-KEY-LIMITS")
async def test_keys_of_the_settings_have_limits_too(store: Store, serve: Serve) -> None:
    process = Process(serve(["Hello!"] * 2, on=store), limits=ClientLimits(tokens_per_day=1))
    assert (await process.ask("root")).status_code == 200
    process.time += 3
    check(await process.ask("root"), 429)


@pytest.mark.requirement("API-KEY-LIMITS")
async def test_requests_are_limited_with_headers(serve: Serve) -> None:
    process = Process(serve(["Hello!"] * 3))
    secret = await process.create(requests_per_minute=2)
    answers = [await process.ask(secret) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    remaining = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert remaining == ["1", "0", "0"]
    assert answers[2].headers["x-ratelimit-limit-requests"] == "2"
    assert answers[2].headers["x-ratelimit-reset-requests"] == "30s"


async def test_keys_are_managed_only_if_they_are_stored(serve: Serve) -> None:
    reply = await serve().client.get("/antiphon/keys")
    assert reply.status_code == 400 and "stored_keys" in reply.json()["error"]["message"]


# --- access ends when it is revoked --------------------------------------------------------------


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize("ending", ["revoked", "rotated", "tenant", "tenant of the settings"])
async def test_socket_is_closed_when_its_key_ends(serve: Serve, ending: str) -> None:
    process = Process(serve(["Hello!"] * 3), ends_runs=True)
    secret = await process.create(tenant="team")
    if ending == "tenant of the settings":
        secret = "root"
    async with asyncio.timeout(30), WebSocketClient(process.app, x_api_key=secret) as wire:
        wire.create(input="hi")
        while (await wire.event())["type"] != "response.completed":
            pass
        paths = {
            "revoked": ("DELETE", "/antiphon/keys/k"),
            "rotated": ("POST", "/antiphon/keys/k/rotate"),
            "tenant": ("DELETE", "/antiphon/tenants/team"),
            "tenant of the settings": ("DELETE", "/antiphon/tenants/ops"),
        }
        assert (await process.send(*paths[ending])).status_code == 200
        process.time += 3
        wire.create(input="hi")
        event = await wire.event()
        assert (event["type"], event["status"]) == ("error", 401)
        while (message := await wire.message())["type"] != "websocket.close":
            pass
        assert message["code"] == 1008


@pytest.mark.requirement("API-REVOKED-ACCESS")
async def test_limits_of_an_open_socket_are_those_of_now(serve: Serve) -> None:
    server = serve(["Hello!"] * 3)
    process = Process(server, ends_runs=True)
    secret = await process.create(tenant="team")
    async with asyncio.timeout(30), WebSocketClient(process.app, x_api_key=secret) as wire:
        wire.create(input="hi")
        while (await wire.event())["type"] != "response.completed":
            pass
        record = (await process.keys.current())[0]
        await server.store.keys.replace(replace(record, models=("other",)))
        process.time += 3
        wire.create(input="hi")
        assert (await wire.event())["error"]["code"] == "model_not_found"


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"models": ("other",)}, "do not have access"), ({"tools": ()}, "may not use")],
)
@pytest.mark.parametrize("kind", ["background", "batch"])
async def test_work_that_waited_begins_with_the_limits_of_now(
    serve: Serve, kind: str, limits: dict[str, Any], reason: str
) -> None:
    """A response in the background, and a line of a batch: both begin after the key got limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "start", lambda service: None)
        server = serve(["Hello!"])
    process = Process(server, ends_runs=True)
    secret = await process.create(tenant="team")
    body = {**ASK, "tools": [{"type": "web_search"}]}
    if kind == "background":
        path, work = "/v1/responses", {**body, "background": True}
    else:
        line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
        files = {"file": ("in.jsonl", json.dumps(line).encode())}
        headers, form = {"authorization": f"Bearer {secret}"}, {"purpose": "batch"}
        file = await process.client.post("/v1/files", headers=headers, data=form, files=files)
        path, work = "/v1/batches", {"endpoint": "/v1/responses", "completion_window": "24h"}
        work["input_file_id"] = file.json()["id"]
    begun = (await process.send("POST", path, secret, work)).json()
    record = (await process.keys.current())[0]
    await server.store.keys.replace(replace(record, **limits))
    process.time += 3
    server.service.start()
    async with asyncio.timeout(30):
        while begun["status"] not in ("completed", "failed"):
            await asyncio.sleep(0.05)
            begun = (await process.send("GET", f"{path}/{begun['id']}", secret)).json()
    if kind == "background":
        assert reason in begun["error"]["message"]
    else:
        error = await process.send("GET", f"/v1/files/{begun['error_file_id']}/content", secret)
        assert reason in error.text


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize("background", [False, True])
async def test_run_of_a_revoked_key_ends_and_is_not_completed(
    serve: Serve, background: bool
) -> None:
    gate = asyncio.Event()
    backend = SteppedBackend([ANSWER, Text("Hel"), gate, Text("lo"), Close(), finish()])
    server = serve(backend)
    server.service.start()
    process = Process(server, ends_runs=True)
    secret = await process.create(tenant="team")
    body = {**ASK, "background": background}
    asking = asyncio.create_task(process.send("POST", "/v1/responses", secret, body))
    async with asyncio.timeout(30):
        while not backend.delta_count:
            await asyncio.sleep(0)
        await process.send("DELETE", "/antiphon/keys/k")
        if not background:
            gate.set()  # the answer is complete, but it is not stored
            assert "no longer valid" in (await asking).text
            assert (await server.store.usage("team")).responses == 0
            return
        id = (await asking).json()["id"]
        await asyncio.wait_for(backend.closed.wait(), 20)  # while the model still writes
        while (
            stored := await server.store.load("team", id)
        ) is None or stored.response.error is None:
            await asyncio.sleep(0)
        assert "no longer valid" in stored.response.error.message


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", ASK),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
async def test_stream_of_a_rotated_key_ends_with_the_reason(
    serve: Serve, path: str, body: dict[str, Any]
) -> None:
    backend = SteppedBackend([ANSWER, Text("Hel"), asyncio.Event()])
    process = Process(serve(backend), ends_runs=True)
    secret = await process.create(tenant="team")
    body = {"model": "tiny", "stream": True, **body}
    asking = asyncio.create_task(process.send("POST", path, secret, body))
    async with asyncio.timeout(30):
        while not backend.delta_count:
            await asyncio.sleep(0)
        await process.send("POST", "/antiphon/keys/k/rotate")
        process.time += 3
        assert "Incorrect API key provided." in (await asking).text


@pytest.mark.requirement("API-REVOKED-ACCESS")
async def test_run_of_a_deleted_tenant_ends_although_its_key_is_in_the_settings(
    serve: Serve,
) -> None:
    gate = asyncio.Event()
    backend = SteppedBackend([ANSWER, Text("Hel"), gate, Text("lo"), Close(), finish()])
    server = serve(backend)
    process = Process(server, ends_runs=True)
    async with asyncio.timeout(30):
        asking = asyncio.create_task(process.send("POST", "/v1/responses", body=ASK))
        while not backend.delta_count:
            await asyncio.sleep(0)
        await process.send("DELETE", "/antiphon/tenants/ops")
        gate.set()  # the answer is complete, but it is not stored
        assert "was deleted" in (await asking).text
        assert (await server.store.usage("ops")).responses == 0
        # The key itself is still valid.
        assert (await process.send("POST", "/v1/responses", body=ASK)).status_code == 200
        assert (await server.store.usage("ops")).responses == 1


ENDINGS = {
    "revoked": ("DELETE", "/antiphon/keys/k"),
    "rotated": ("POST", "/antiphon/keys/k/rotate"),
    "deleted": ("DELETE", "/antiphon/tenants/team"),
}


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize("ending", ["revoked", "rotated"])
async def test_stream_ends_with_the_key_that_reads_it(
    serve: Serve, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response of another key goes on."""
    monkeypatch.setattr(supervisor, "_CHECK_S", 0.01)
    gate = asyncio.Event()
    backend = SteppedBackend([ANSWER, Text("Hel"), gate, Text("lo"), Close(), finish()])
    server = serve(backend)
    server.service.start()
    process = Process(server, ends_runs=True)
    secret, other = (
        await process.create(tenant="team"),
        await process.create(tenant="team", name="other"),
    )
    body = {**ASK, "background": True}
    id = (await process.send("POST", "/v1/responses", other, body)).json()["id"]
    async with asyncio.timeout(30):
        reading = asyncio.create_task(
            process.send("GET", f"/v1/responses/{id}?stream=true", secret)
        )
        while not backend.delta_count:
            await asyncio.sleep(0)
        assert (await process.send(*ENDINGS[ending])).status_code == 200
        # The server breaks the stream off, and the client of this test then raises this error.
        with pytest.raises(AssertionError):
            await reading
        gate.set()
        whole = await process.send("GET", f"/v1/responses/{id}?stream=true", other)
        assert b"[DONE]" in whole.content


@pytest.mark.requirement("API-REVOKED-ACCESS")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads/{upload}/parts", "/v1/skills"])
async def test_form_that_arrives_after_its_key_ended_is_not_stored(
    serve: Serve, ending: str, path: str
) -> None:
    server = serve(["unused"])
    process = Process(server, ends_runs=True)
    secret = await process.create(tenant="team")
    begun = {"filename": "a", "purpose": "user_data", "bytes": 1, "mime_type": "text/plain"}
    upload = (await process.send("POST", "/v1/uploads", secret, begun)).json()["id"]
    server.now += 1
    is_sending = asyncio.Event()
    gate = asyncio.Event()
    name = {"/v1/files": "file", "/v1/skills": "files"}.get(path, "data")
    form = (
        '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        f'--b\r\ncontent-disposition: form-data; name="{name}"; filename="a"\r\n\r\na\r\n--b--\r\n'
    )

    async def content() -> AsyncIterator[bytes]:
        yield form[:50].encode()
        is_sending.set()
        await gate.wait()
        yield form[50:].encode()

    headers = {
        "authorization": f"Bearer {secret}",
        "content-type": "multipart/form-data; boundary=b",
    }
    async with asyncio.timeout(30):
        sending = asyncio.create_task(
            process.client.post(path.format(upload=upload), headers=headers, content=content())
        )
        await is_sending.wait()
        assert (await process.send(*ENDINGS[ending])).status_code == 200
        gate.set()
        assert (await sending).status_code in (401, 404)  # 404: the upload is gone
    assert await server.store.files.list_page("team", FileQuery()) == ()
    if ending == "deleted":  # at once in this process, although keys are read every two seconds
        check(await process.ask(secret), 401)


@pytest.mark.requirement("API-REVOKED-ACCESS")
async def test_tool_of_a_revoked_key_does_not_run(serve: Serve) -> None:
    """Between two tool calls: the second is not made."""
    server = serve(["unused"])
    process = Process(server, ends_runs=True)
    await process.create(tenant="team")
    environment = CallEnvironment(
        services=CallServices(
            tenant="team",
            response_id="resp_1",
            ids=lambda prefix: prefix,
            check_access=partial(server.keys.check, "team", "k"),
        ),
        max_result_bytes=1000,
        timeout_s=5,
        budget=CallBudget(None),
    )
    await server.keys.check("team", "k")
    await process.send("DELETE", "/antiphon/keys/k")
    call: Any = SimpleNamespace(call_id="c")
    with pytest.raises(AccessRevoked):
        async for delta in CallRunner(environment, time.monotonic).run([call]):
            raise AssertionError(delta)
