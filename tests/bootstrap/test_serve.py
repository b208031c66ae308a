"""The composition root: settings reach their parts, and everything opened is closed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.bootstrap.access import check_exposure
from antiphon.bootstrap.addresses import address
from antiphon.bootstrap.models import reload_models
from antiphon.bootstrap.serve import serve
from antiphon.config.keys import ApiKey
from antiphon.config.load import LoadedSettings, SettingsSources
from antiphon.config.model import Model
from antiphon.config.reload import SettingsReloader
from antiphon.config.settings import Settings
from antiphon.config.tables import (
    FileSearchSettings,
    RetentionSettings,
    SandboxSettings,
    WebhookSettings,
)
from antiphon.config.tenants import Tenant
from antiphon.errors import SetupError
from antiphon.models import catalog
from antiphon.store.base import Retention
from antiphon.store.sqlite.store import SqliteStore
from antiphon.support.logs import LogLevel, open_log
from antiphon.support.loop_watchdog import LoopWatchdog
from antiphon.workers.setup import StartReport
from tests.webhooks.receiver import SECRETS, Receiver

WAIT_S = 60
MODELS = {"echo": Model(source="Hello there.", engine="scripted")}

Use = Callable[[httpx.AsyncClient, StartReport], Awaitable[None]]


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the logging of the test process unchanged."""
    monkeypatch.setattr("antiphon.bootstrap.serve.capture_libraries", lambda log: None)


async def run_server(use: Use, **fields: Any) -> None:
    """Serve with these settings, use the server, and stop it with SIGTERM.

    The parts that are on by default and not tested here are off, because they take time to start.
    """
    off = {
        "sandbox": SandboxSettings(kind="off"),
        "file_search": FileSearchSettings(embeddings="off"),
    }
    settings = Settings(**{"port": 0, "store": "memory:", "models": MODELS, **off, **fields})
    started: asyncio.Future[StartReport] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(settings, started.set_result))
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait((started, running), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        serving = started.result()
        try:
            async with httpx.AsyncClient(base_url=f"{serving.url}/v1/", timeout=WAIT_S) as client:
                assert (await client.get(f"{serving.url}/health")).status_code == 200
                await use(client, serving)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await running


async def test_ollama_port_has_the_same_endpoints() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        answer = await client.get(f"http://127.0.0.1:{port}/api/tags")
        assert [model["name"] for model in answer.json()["models"]] == ["echo:latest"]

    await run_server(use, ollama_port=port)


async def test_response_is_generated_stored_and_chained() -> None:
    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        assert [model.name for model in serving.models] == ["echo"]
        first = (await client.post("responses", json={"input": "hi"})).json()
        assert first["output"][0]["content"][0]["text"] == "Hello there."
        assert (await client.get(f"responses/{first['id']}")).json() == first
        body = {"input": "more", "previous_response_id": first["id"]}
        second = (await client.post("responses", json=body)).json()
        items = (await client.get(f"responses/{second['id']}/input_items")).json()["data"]
        assert len(items) == 3

    await run_server(use)


async def test_settings_reach_the_http_layer() -> None:
    key = ApiKey(
        tenant="t", sha256="2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
    )

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        assert (await client.get("models")).status_code == 401
        client.headers["authorization"] = "Bearer key"
        assert (await client.get("models")).status_code == 200
        turn = {"role": "user", "content": "hi"}
        cases: list[tuple[dict[str, Any], int]] = [
            ({"input": [turn] * 2}, 200),
            ({"input": [turn] * 3}, 400),
            ({"input": "x" * 2000}, 413),
            ({"input": "hi", "tools": [{"type": "web_search"}]}, 400),
        ]
        for body, status in cases:
            assert (await client.post("responses", json=body)).status_code == status
        origin = {"origin": "https://page.test"}
        allowed = (await client.get("models", headers=origin)).headers
        assert allowed["access-control-allow-origin"] == "https://page.test"
        root = serving.url
        assert (
            await client.get(f"{root}/metrics", headers={"authorization": ""})
        ).status_code == 401

    await run_server(
        use,
        keys=(key,),
        max_items=2,
        max_body_bytes=1000,
        unavailable_tools="refuse",
        cors_origins=("https://page.test",),
        metrics="nobody",
    )


async def test_stalls_of_the_event_loop_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls: list[Callable[[], None]] = []

    def create(threshold_s: float, **fields: Any) -> LoopWatchdog:
        assert threshold_s == 0.25
        stalls.append(fields["on_stall"])
        return LoopWatchdog(WAIT_S, **fields)

    monkeypatch.setattr("antiphon.bootstrap.telemetry.LoopWatchdog", create)

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        (on_stall,) = stalls
        on_stall()
        metrics = (await client.get(f"{serving.url}/metrics")).text
        assert "antiphon_loop_stalls_total 1.0" in metrics

    await run_server(use, stall_log_ms=250)
    stalls.clear()

    async def unwatched(client: httpx.AsyncClient, serving: StartReport) -> None:
        assert not stalls

    await run_server(unwatched, stall_log_ms=0)


async def test_rate_limit_without_keys_is_shared() -> None:
    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        statuses = [(await client.get("models")).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]

    await run_server(use, requests_per_minute=2)


@pytest.mark.requirement("API-RESTART")
async def test_stored_response_survives_a_restart(tmp_path: Path) -> None:
    store = str(tmp_path / "new" / "responses.db")
    ids: list[str] = []

    async def write(client: httpx.AsyncClient, serving: StartReport) -> None:
        ids.append((await client.post("responses", json={"input": "hi"})).json()["id"])

    async def read(client: httpx.AsyncClient, serving: StartReport) -> None:
        assert (await client.get(f"responses/{ids[0]}")).json()["status"] == "completed"

    await run_server(write, store=store)
    await run_server(read, store=store)


@pytest.mark.parametrize("where", ["the store", "the settings"])
async def test_encrypted_items_survive_a_restart(tmp_path: Path, where: str) -> None:
    key = f"a:{base64.b64encode(bytes(32)).decode()}"
    fields: dict[str, Any] = {"undecryptable_items": "refuse", "store": str(tmp_path / "a.db")}
    if where == "the settings":
        fields |= {"store": "memory:", "encryption_keys": (key,)}
    sealed: list[Any] = []

    async def seal(client: httpx.AsyncClient, serving: StartReport) -> None:
        talk = [{"role": "user", "content": "hi"}, {"type": "compaction_trigger"}]
        sealed.extend((await client.post("responses", json={"input": talk})).json()["output"])

    async def unseal(client: httpx.AsyncClient, serving: StartReport) -> None:
        answer = await client.post("responses", json={"input": sealed})
        assert answer.status_code == 200, answer.text

    async def fail(client: httpx.AsyncClient, serving: StartReport) -> None:
        answer = await client.post("responses", json={"input": sealed})
        assert answer.json()["error"]["code"] == "invalid_encrypted_content"

    await run_server(seal, **fields)
    assert [item["type"] for item in sealed] == ["compaction"]
    await run_server(unseal, **fields)
    await run_server(fail, undecryptable_items="refuse")


async def test_shutdown_closes_models_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(ScriptedBackend, "close", lambda self: _record(closed, "model"))
    monkeypatch.setattr(SqliteStore, "close", lambda self: _record(closed, "store"))

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        assert closed == []

    await run_server(use)
    assert closed == ["model", "store"]


async def _record(notes: list[str], word: str) -> None:
    notes.append(word)


async def test_store_is_swept_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept: list[Retention] = []
    done = asyncio.Event()

    async def sweep(self: object, retention: Retention, now: int) -> int:
        swept.append(retention)
        done.set()
        raise RuntimeError("a sweep that fails ends nothing")

    monkeypatch.setattr(SqliteStore, "sweep", sweep)

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        await done.wait()
        assert (await client.get("models")).status_code == 200

    await run_server(
        use,
        retention=RetentionSettings(days=2, responses=5, bytes=0),
    )
    (retention,) = swept
    assert retention.max_age_s == 172_800
    assert (retention.max_responses, retention.max_bytes) == (5, None)


@pytest.mark.requirement("API-WEBHOOKS")
async def test_webhooks_are_delivered_also_during_shutdown() -> None:
    receiver = Receiver(204)

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        for _ in range(2):
            body = {"input": "hi", "background": True}
            names.append((await client.post("responses", json=body)).json()["id"])
        async with asyncio.timeout(30):
            for name in names:  # a server that stops leaves queued runs to its next start
                while (await client.get(f"responses/{name}")).json()["status"] == "queued":
                    await asyncio.sleep(0)

    names: list[str] = []
    async with receiver.listening():
        await run_server(
            use,
            webhook=WebhookSettings(url=receiver.url, secrets=SECRETS, allow_private=True),
        )
    assert receiver.count == 2
    deliveries = [receiver.deliveries.get_nowait() for _ in names]
    with openai.OpenAI(api_key="none", webhook_secret=SECRETS[1]) as client:
        events = [client.webhooks.unwrap(each.body.decode(), each.headers) for each in deliveries]
    assert {event.type for event in events} == {"response.completed"}
    assert {json.loads(each.body)["data"]["id"] for each in deliveries} == set(names)


async def test_webhooks_are_delivered_to_endpoints_of_clients() -> None:
    receiver = Receiver(204)

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        types = ["response.completed"]
        endpoint = {"name": "a", "url": receiver.url, "event_types": types}
        assert (await client.post("webhook_endpoints", json=endpoint)).status_code == 200
        name = (await client.post("responses", json={"input": "hi", "background": True})).json()
        delivery = await receiver.deliveries.get()
        assert json.loads(delivery.body)["data"]["id"] == name["id"]

    async with receiver.listening():
        await run_server(use, webhook=WebhookSettings(endpoints="any"))


@pytest.mark.parametrize(
    ("webhook", "message"),
    [
        (WebhookSettings(url="http://hook.example"), "https://"),
        (WebhookSettings(url="https://169.254.169.254/", secrets=SECRETS), "private"),
        (WebhookSettings(url="https://hook.example"), "webhook.secrets"),
    ],
)
async def test_invalid_webhook_settings_fail_before_models_are_downloaded(
    webhook: WebhookSettings, message: str
) -> None:
    bad = {"bad": Model(source="nowhere.gguf")}
    with pytest.raises(SetupError, match=message):
        settings = Settings(port=0, store="memory:", models=bad, webhook=webhook)
        await serve(settings, lambda serving: None)


async def test_invalid_encryption_key_fails_at_the_start() -> None:
    with pytest.raises(SetupError, match="encryption key"):
        await serve(
            Settings(port=0, store="memory:", encryption_keys=("a:CANARY",)), lambda serving: None
        )


async def test_models_are_closed_if_another_part_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded, closed = asyncio.Event(), list[str]()
    load = catalog.load

    async def load_models(*given: Any, **named: Any) -> Any:
        models = await load(*given, **named)
        loaded.set()
        return models

    async def fail(*_: Any) -> Any:
        await loaded.wait()  # while this part is opened
        raise SetupError("this part")

    monkeypatch.setattr(catalog, "load", load_models)
    monkeypatch.setattr("antiphon.bootstrap.app.open_server_tools", fail)
    monkeypatch.setattr(ScriptedBackend, "close", lambda self: _record(closed, "model"))
    with pytest.raises(SetupError, match="this part"):
        await serve(Settings(port=0, store="memory:", models=MODELS), lambda serving: None)
    assert closed == ["model"]


async def test_failed_start_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    bad = {"bad": Model(source="nowhere.gguf")}
    for _ in range(2):  # the second finds the port free again
        with pytest.raises(SetupError, match=r"nowhere\.gguf"):
            await serve(Settings(port=0, store="memory:", models=bad), lambda serving: None)
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert [name for name in left if not name.startswith("asyncio_")] == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "my.host.test"])
async def test_non_loopback_host_needs_keys(host: str) -> None:
    with pytest.raises(SetupError, match="there are no API keys"):
        await serve(Settings(host=host, port=0), lambda serving: None)


@pytest.mark.parametrize("fields", [{"allow_unauthenticated": True}, {"keys": ("one",)}])
def test_keys_or_allow_unauthenticated_permit_any_host(fields: Any) -> None:
    check_exposure(Settings(host="0.0.0.0", **fields))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost", "::1", "[::1]"])
def test_loopback_host_needs_no_keys(host: str) -> None:
    check_exposure(Settings(host=host))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("[::1]", "http://[::1]:80"),
        ("my.host", "http://my.host:80"),
    ],
)
def test_address_can_be_opened(host: str, url: str) -> None:
    assert address(host, 80) == url


async def test_quotas_of_single_tenants_replace_the_global_ones() -> None:
    tenants = {"default": Tenant(max_responses=1, max_files_bytes=0)}

    async def use(client: httpx.AsyncClient, serving: StartReport) -> None:
        usage = (await client.get(f"{serving.url}/antiphon/usage")).json()["storage"]
        assert usage["responses"] == {"used": 0, "limit": 1}
        assert usage["files"] == {"used": 0, "limit": 7}
        assert usage["files_bytes"] == {"used": 0, "limit": None}, "0 means no limit"
        assert usage["containers"] == {"used": 0, "limit": 0}, "code execution is off"
        body = {"model": "echo", "input": "hi"}
        answers = [await client.post("responses", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]

    await run_server(use, tenants=tenants, max_files=7, max_responses=9)


async def test_hangup_reloads_keys_limits_and_models_under_a_stream(tmp_path: Path) -> None:
    """The stream goes on, later requests see the new settings, and invalid ones change nothing."""
    file = tmp_path / "antiphon.toml"
    secret = "sk-reload"
    digest = hashlib.sha256(secret.encode()).hexdigest()

    def write(*lines: str, words: str = "new") -> None:
        base = (
            'port = 0\nstore = "memory:"\nsandbox.kind = "off"\nfile_search.embeddings = "off"\n'
            f'prompts_dir = "{tmp_path}/prompts"\nlog_level = "error"\n'
        )
        models = (
            f'[models.slow]\nengine = "scripted"\nsource = "{"word " * 30}"\n'
            "template_kwargs = { wait_s = 0.02 }\n"
            f'[models.{words}]\nengine = "scripted"\nsource = "{words}"\n'
        )
        file.write_text(base + "\n".join(lines) + "\n" + models)

    write(words="old")
    sources = SettingsSources(file=str(file))
    loaded = sources.load()
    started: asyncio.Future[StartReport] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(loaded.settings, started.set_result, sources=sources))
    async with asyncio.timeout(WAIT_S):
        serving = await started
        async with httpx.AsyncClient(base_url=f"{serving.url}/v1/", timeout=WAIT_S) as client:

            async def status(model: str, **headers: str) -> int:
                body = {"model": model, "input": "Hi"}
                return (await client.post("responses", json=body, headers=headers)).status_code

            assert (await status("old"), await status("new")) == (200, 404)
            body = {"model": "slow", "input": "Hi", "stream": True}
            async with client.stream("POST", "responses", json=body) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                write("max_responses = 'many'")
                os.kill(os.getpid(), signal.SIGHUP)  # invalid: nothing changes
                write(f'operators = ["k"]\n[[keys]]\nname = "k"\ntenant = "t"\nsha256 = "{digest}"')
                os.kill(os.getpid(), signal.SIGHUP)
                while await status("old") != 401:
                    await asyncio.sleep(0.01)
                text = "\n".join([line async for line in lines])
                assert "response.completed" in text and "response.failed" not in text
            key = {"authorization": f"Bearer {secret}"}
            assert (await status("new", **key), await status("old", **key)) == (200, 404)
            audit = await client.get(f"{serving.url}/antiphon/audit", headers=key)
            assert {event["type"] for event in audit.json()["data"]} == {"settings.reloaded"}
        os.kill(os.getpid(), signal.SIGTERM)
        await running


@pytest.mark.parametrize("setting", ["embeddings", "reranker"])
async def test_reload_refuses_a_search_model_that_is_not_served(setting: str) -> None:
    """The models of the earlier settings stay served."""
    off = {"embeddings": "off", "reranker": "off"}
    models = await catalog.load(Settings(models=MODELS), now=0)
    search = FileSearchSettings(**{**off, setting: "other"})
    changed: Any = {"models": {"new": MODELS["echo"]}, "file_search": search}
    with pytest.raises(SetupError, match=setting):
        await reload_models(models, Settings(**changed), None)
    assert [model.name for model in models.all()] == ["echo"]
    await models.close()


async def test_hangup_names_what_needs_a_restart(tmp_path: Path) -> None:
    file, stream = tmp_path / "antiphon.toml", io.StringIO()
    file.write_text("lease_s = 3\n")
    sources = SettingsSources(file=str(file))
    applied: list[int] = []

    async def apply(loaded: LoadedSettings) -> None:
        applied.append(loaded.settings.requests_per_minute)

    level = LogLevel("info")
    log = open_log(stream, level=level)
    reloads = SettingsReloader(sources.load(), sources, apply, log=log, level=level)
    file.write_text('lease_s = 4\nrequests_per_minute = 5\nlog_level = "warning"\n')
    assert await reloads.reload()
    file.write_text("lease_s = 'x'\n")
    assert not await reloads.reload()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert applied == [5]
    assert [line.get("settings") for line in lines if "settings" in line] == [["lease_s"]]
    assert "lease_s" in lines[-1]["reason"]


@pytest.mark.parametrize(("old", "new"), [("info", "error"), ("error", "info")])
async def test_reload_that_changes_the_log_level_is_logged(
    old: str, new: str, tmp_path: Path
) -> None:
    file, stream = tmp_path / "antiphon.toml", io.StringIO()
    file.write_text(f'log_level = "{old}"\n')
    sources = SettingsSources(file=str(file))

    async def apply(loaded: LoadedSettings) -> None: ...

    level = LogLevel(old)
    log = open_log(stream, level=level)
    reloads = SettingsReloader(sources.load(), sources, apply, log=log, level=level)
    file.write_text(f'log_level = "{new}"\n')
    assert await reloads.reload()
    log.info("after the reload")
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["the settings are reloaded", "after the reload"][: 1 + (new == "info")]


async def test_reload_ends_the_last_key_of_another_tenant(tmp_path: Path) -> None:
    """With one tenant left, caches could be shared, but a running server keeps them separate."""

    def keys(*tenants: str) -> str:
        return "".join(f'[[keys]]\ntenant = "{t}"\nsha256 = "{"0" * 64}"\n' for t in tenants)

    file, stream = tmp_path / "antiphon.toml", io.StringIO()
    file.write_text(keys("a", "b"))
    sources = SettingsSources(file=str(file))
    applied: list[Settings] = []

    async def apply(loaded: LoadedSettings) -> None:
        applied.append(loaded.settings)

    level = LogLevel("info")
    log = open_log(stream, level=level)
    reloads = SettingsReloader(sources.load(), sources, apply, log=log, level=level)
    for tenants in (("a",), ("a", "b")):
        file.write_text(keys(*tenants))
        assert await reloads.reload()
        assert [key.tenant for key in applied[-1].keys] == list(tenants)
        assert not applied[-1].shares_prefix_cache
    alone = SettingsReloader(
        LoadedSettings(replace(applied[-1], keys=applied[0].keys, share_prefix_cache=None), {}),
        sources,
        apply,
        log=log,
        level=level,
    )
    assert not await alone.reload()
    assert "needs a restart" in stream.getvalue()
