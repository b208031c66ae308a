"""``/antiphon/models``: states, load, unload, downloads, and who may use them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.backends.on_demand import OnDemandBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.http.middleware.auth import AuthConfig
from antiphon.limits.key_ring import AuthKey
from antiphon.models import files
from antiphon.models.catalog import Catalog, load
from antiphon.models.files import deletable_files, delete_files
from tests.conformance.documented import ApiDocument, DocumentedClient, record_query
from tests.models.test_files import tiny_gguf

WAIT_S = 60


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    tiny_gguf(tmp_path / "m.gguf")
    models = {
        "org/talk": Model(source="Hi.", engine="scripted", aliases=("t",), memory_mb=3),
        "later": Model(source="Hi.", engine="scripted", load="demand"),
        "far": Model(source="http://127.0.0.1:9/v1", engine="responses", upstream_model="x"),
        "file": Model(source=str(tmp_path / "m.gguf"), load="demand"),
        "absent": Model(source="owner/repo:Q4_0", load="demand"),
    }
    loaded = await load(Settings(models=models, cache_dir=tmp_path / "cache", model_memory_mb=8))
    yield loaded
    await loaded.close()


@pytest.fixture
def client(make_app: Any, catalog: Catalog) -> Any:
    return make_app(manager=catalog.manager).client


@pytest.mark.requirement("HF-3")
async def test_list_shows_states_sizes_and_memory(client: Any) -> None:
    listed = (await client.get("/antiphon/models")).json()
    assert listed["memory"] == {"used_bytes": 3 * 2**20, "budget_bytes": 8 * 2**20}
    talk, later, far, file, absent = listed["data"]
    assert talk == {
        "id": "org/talk",
        "object": "antiphon.model",
        "aliases": ["t"],
        "engine": "scripted",
        "source": None,
        "status": {"value": "loaded"},
        "can_unload": True,
        "size_bytes": None,
        "memory_bytes": 3 * 2**20,
        "context_size": talk["context_size"],
        "prompt_cache": None,
        "threads": None,
        "running_requests": 0,
    }
    assert (later["status"], later["memory_bytes"]) == ({"value": "unloaded"}, None)
    assert (far["can_unload"], far["source"]) == (False, None), "its address may hold a password"
    assert file["size_bytes"] > 0 and file["memory_bytes"] > file["size_bytes"]
    assert (absent["source"], absent["size_bytes"]) == ("owner/repo:Q4_0", None)


@pytest.mark.requirement("HF-3")
async def test_model_is_unloaded_and_loaded_by_any_name(client: Any) -> None:
    for path, state in (("t/unload", "unloaded"), ("org/talk/load", "loaded"), ("t", "loaded")):
        send = client.post if "load" in path else client.get
        answer = await send(f"/antiphon/models/{path}")
        assert (answer.status_code, answer.json()["status"]["value"]) == (200, state)
        assert answer.json()["id"] == "org/talk"


@pytest.mark.parametrize("action", ["load", "unload", "pull"])
async def test_actions_reject_other_methods(client: Any, action: str) -> None:
    for method in ("GET", "DELETE"):
        answer = await client.request(method, f"/antiphon/models/org/talk/{action}")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert answer.json()["error"]["code"] == "method_not_supported"


async def test_operations_answer_as_documented(
    client: Any, document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = DocumentedClient(client, ApiDocument(document), record_query(monkeypatch))
    await call("listManagedModels")
    await call("getManagedModel", "t")
    await call("loadModel", "later")
    await call("unloadModel", "later")
    events = await call("pullModel", "file")
    assert (events[-2]["type"], events[-1]) == ("antiphon.pull.completed", "[DONE]")
    await call("loadModel", "file", status=503)


@pytest.fixture
def downloaded(tmp_path: Path) -> Path:
    """A file of the model ``absent``, as if it had been downloaded."""
    folder = tmp_path / "cache" / "hf" / "owner" / "repo"
    folder.mkdir(parents=True)
    tiny_gguf(folder / "m-Q4_0.gguf")
    return folder / "m-Q4_0.gguf"


async def test_downloaded_files_are_deleted(
    client: Any, document: Any, downloaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await client.get("/antiphon/models/absent")).json()["size_bytes"]
    call = DocumentedClient(client, ApiDocument(document), record_query(monkeypatch))
    answer = await call("deleteModel", "absent")
    assert answer == {"id": "absent", "object": "model", "deleted": True}
    assert not downloaded.exists()
    assert (await client.get("/antiphon/models/absent")).json()["size_bytes"] is None
    await call("deleteModel", "none", status=404)


def test_files_of_two_models_are_kept(downloaded: Path, tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path / "cache")
    one, other = Model(source="owner/repo:Q4_0"), Model(source="hf:owner/repo/m-Q4_0.gguf")
    assert not deletable_files(one, settings, [other])
    files = deletable_files(one, settings, [Model(source="owner/other:Q4_0")])
    assert files == (downloaded,)
    delete_files(files)
    assert not downloaded.exists()


async def test_ollama_names_a_model_that_does_not_exist(client: Any) -> None:
    body = {"model": "none"}
    answer = await client.request("DELETE", "/api/delete", json=body)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("model 'none' not found. This server has: ")


@pytest.mark.parametrize("name", ["absent", "file", "far", "later"])
async def test_other_files_are_not_deleted(
    client: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unload(backend: OnDemandBackend) -> None:
        raise AssertionError("a refused deletion has unloaded the model")

    monkeypatch.setattr(OnDemandBackend, "unload", unload)
    answer = await client.delete(f"/v1/models/{name}")
    assert answer.status_code == 403
    assert "Only such files can be deleted" in answer.json()["error"]["message"]
    assert (tmp_path / "m.gguf").exists()


async def test_errors_name_the_reason(client: Any, error_of: Callable[..., Any]) -> None:
    for path, status, code, words in (
        ("nothing/load", 404, "model_not_found", "'nothing' does not exist"),
        ("far/load", 400, "unsupported_model", "runs on another server"),
        ("far/unload", 400, "unsupported_model", "runs on another server"),
        ("later/pull", 400, "unsupported_model", "has no files"),
        ("file/load", 503, "model_not_loaded", "could not be loaded: "),
    ):
        answer = await client.post(f"/antiphon/models/{path}")
        error = error_of(answer)
        assert (answer.status_code, error["code"]) == (status, code)
        assert words in error["message"]


async def test_pull_streams_progress_and_the_end(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(source: str, cache: Path, progress: Any) -> Path:
        await asyncio.to_thread(progress, "a.gguf", 1, 2)
        await asyncio.to_thread(progress, "a.gguf", 2, 2)
        if fails:
            raise SetupError("owner/repo cannot be pulled: No space left on device.")
        return Path("a.gguf")

    monkeypatch.setattr(files, "_FETCHERS", {"llama": fetch})
    for fails in (False, True):
        answer = await client.post("/antiphon/models/absent/pull")
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert lines.pop() == "data: [DONE]"
        *steps, last = [json.loads(line[6:]) for line in lines]
        assert [(step["file"], step["bytes"], step["total_bytes"]) for step in steps] == [
            ("a.gguf", 1, 2),
            ("a.gguf", 2, 2),
        ]
        if fails:
            assert last["type"] == "antiphon.pull.failed" and "No space left" in last["message"]
        else:
            assert (last["type"], last["model"]["id"]) == ("antiphon.pull.completed", "absent")


async def test_abandoned_pull_is_stopped(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = asyncio.Event()

    async def fetch(source: str, cache: Path, progress: Any) -> Path:
        progress("a.gguf", 1, 2)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    monkeypatch.setattr(files, "_FETCHERS", {"llama": fetch})
    assert catalog.manager is not None
    events = catalog.manager.pull("absent")
    async with asyncio.timeout(WAIT_S):
        await anext(events)
        await events.aclose()
    assert stopped.is_set()


async def test_only_operators_may_manage(
    make_app: Any, catalog: Catalog, error_of: Callable[..., Any]
) -> None:
    def key(name: str) -> AuthKey:
        return AuthKey(name=name, tenant="t", sha256=hashlib.sha256(name.encode()).hexdigest())

    access = AuthConfig(keys=(key("ann"), key("bob")), roles={"operator": ("ann",)})
    client = make_app(access=access, manager=catalog.manager).client
    for name, status in (("ann", 200), ("bob", 403)):
        headers = {"authorization": f"Bearer {name}"}
        assert (await client.get("/antiphon/models", headers=headers)).status_code == status
        for path in ("later", "later/load", "later/unload", "absent/pull"):
            send = client.get if path == "later" else client.post
            if status == 403 or path != "absent/pull":
                answer = await send(f"/antiphon/models/{path}", headers=headers)
                assert answer.status_code == status
    assert error_of(answer)["message"] == "You may not manage the models of this server."
    forwarded = make_app(manager=catalog.manager).client
    answer = await forwarded.get("/antiphon/models", headers={"x-forwarded-for": "192.0.2.1"})
    assert answer.status_code == 403, "a proxy's clients are not on this machine"
