"""The storage of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from structlog.testing import capture_logs

from antiphon.backends.session_signals import SessionSignals
from antiphon.bootstrap.app import open_app
from antiphon.bootstrap.models import UnownedPrefixes, erase_prefixes
from antiphon.bootstrap.storage import files_blobs, open_encryptor
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings, SandboxSettings
from antiphon.engines.llama.disk_states import DiskStates, StoredState
from antiphon.errors import SetupError
from antiphon.inference.sampling import SessionSignal
from antiphon.models.factories import disk_cache
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.resources.conversations import ConversationResource
from tests.harness import asgi_client


async def test_store_without_blobs_refuses_another_place_for_files(tmp_path: Path) -> None:
    settings, store = Settings(files=f"file://{tmp_path}"), MemoryStore()
    encryptor = await open_encryptor(settings, store)
    assert await files_blobs(settings, store, encryptor) is not None
    store.files.supports_blobs = False
    with pytest.raises(SetupError, match="files: this store keeps all contents itself"):
        await files_blobs(settings, store, encryptor)


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings(
        store=f"sqlite:{folder}/responses.db",
        models={"echo": Model(source="Hello there.", engine="scripted")},
        sandbox=SandboxSettings(kind="off"),
        file_search=FileSearchSettings(embeddings="off"),
        **more,
    )


def write_state(
    scratch: Path, owner: str, tenant: str = "default", *, folder: Path | None = None
) -> Path:
    """Write a state as an engine does. ``folder``: that of the store's states. Returns its path."""
    (scratch / "state").write_bytes(b"text")
    state = StoredState(
        scope=None, adapter=None, ids=b"", session=None, tenant=tenant, owner=owner, size=4
    )
    folder = folder or scratch / "responses.db.prefixes"
    return DiskStates(folder / "m" / "v1", 0).write(state, scratch / "state")


async def test_states_are_deleted_if_the_settings_keep_none_on_disk(tmp_path: Path) -> None:
    for settings in ({"keep_prefixes": "memory"}, {"keep_prefixes_mb": 0}):
        write_state(tmp_path, "resp_1")
        async with open_app(settings_of(tmp_path, **settings), log=structlog.get_logger()):
            assert not (tmp_path / "responses.db.prefixes").exists()


@pytest.mark.parametrize(
    ("store", "other"),
    [
        ("memory:", "postgresql://a:b@host/one"),
        ("postgresql://a:b@host/two", "postgresql://a:b@host/one"),
        ("sqlite:{0}/two.db", "sqlite:{0}/responses.db"),
        ("sqlite:{0}/responses.db", "postgresql://a:b@host/one"),
    ],
)
async def test_server_deletes_no_states_of_another_store(
    store: str, other: str, tmp_path: Path
) -> None:
    def settings(store: str, keep: Literal["memory", "disk"]) -> Settings:
        store = store.format(tmp_path)
        return Settings(store=store, cache_dir=tmp_path / "cache", keep_prefixes=keep)

    def write() -> Path:
        cache = disk_cache(settings(other, "disk"))
        assert cache is not None
        return write_state(tmp_path, "resp_1", folder=cache.folder)

    path, empty = write(), MemoryStore()
    for keep in ("memory", "disk"):
        await UnownedPrefixes(settings(store, keep), empty).delete()
        erase_prefixes(
            settings(store, keep), SessionSignal(event="deleted", key=None, tenant="default")
        )
        assert path.exists()
    changed = UnownedPrefixes(settings(other, "memory"), empty)
    await changed.delete()
    assert not path.exists()
    path = write()  # by another server of this store, which has other settings
    await changed.delete()
    assert path.exists()
    await UnownedPrefixes(settings(other, "disk"), empty).delete()
    assert not path.exists()


def test_new_password_of_the_database_leaves_its_states() -> None:
    stores = ("postgresql://a:b@host/one", "postgresql://a:c@host/one")
    caches = [disk_cache(Settings(store=store, keep_prefixes="disk")) for store in stores]
    assert len({cache.folder for cache in caches if cache is not None}) == 1


async def test_states_of_a_deleted_item_are_deleted_although_the_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after it deleted the item, and before it deleted the states."""
    settings, log = settings_of(tmp_path), structlog.get_logger()
    items = [{"role": "user", "content": text} for text in ("secret", "hello")]
    with monkeypatch.context() as killed:
        killed.setattr(SessionSignals, "send", lambda self, signal: None)
        async with open_app(settings, log=log) as app, asgi_client(app) as client:
            created = [
                (await client.post("/v1/conversations", json={"items": items})).json()["id"]
                for _ in range(2)
            ]
            paths = [write_state(tmp_path, id) for id in created]
            url = f"/v1/conversations/{created[0]}/items"
            item = (await client.get(url)).json()["data"][1]["id"]
            assert (await client.delete(f"{url}/{item}")).status_code == 200
    async with open_app(settings, log=log):
        assert [path.exists() for path in paths] == [False, True]
    later = write_state(tmp_path, created[0])
    async with open_app(settings, log=log):
        assert later.exists()


async def test_item_is_deleted_although_its_deletion_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError("there is no space")

    monkeypatch.setattr(Path, "touch", refuse)
    item = {"role": "user", "content": "secret"}
    async with (
        open_app(settings_of(tmp_path), log=structlog.get_logger()) as app,
        asgi_client(app) as client,
    ):
        created = await client.post("/v1/conversations", json={"items": [item]})
        url = f"/v1/conversations/{created.json()['id']}/items"
        path = write_state(tmp_path, created.json()["id"])
        id = (await client.get(url)).json()["data"][0]["id"]
        assert (await client.delete(f"{url}/{id}")).status_code == 200
    assert not path.exists()


async def test_states_without_an_owner_are_deleted_at_the_second_check(tmp_path: Path) -> None:
    """A response is stored after its state."""
    store = MemoryStore()
    unowned = UnownedPrefixes(settings_of(tmp_path), store)
    await unowned.delete()
    paths = [write_state(tmp_path, id) for id in ("conv_later", "resp_gone")]
    await unowned.delete()
    assert all(path.exists() for path in paths)
    await store.save_conversation("default", ConversationResource(id="conv_later", created_at=1))
    await unowned.delete()
    assert [path.exists() for path in paths] == [True, False]


async def test_states_of_what_is_not_stored_are_deleted_at_the_start(tmp_path: Path) -> None:
    """The server was killed before it deleted them, or they have expired. No model is loaded."""
    settings, log = settings_of(tmp_path), structlog.get_logger()
    async with open_app(settings, log=log) as app, asgi_client(app) as client:
        body = {"model": "echo", "input": "hi"}
        response = (await client.post("/v1/responses", json=body)).json()["id"]
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    owners = ((response, "default"), (conversation, "default"), (response, "other"))
    paths = [write_state(tmp_path, *each) for each in (*owners, ("resp_gone", "default"))]
    async with open_app(settings, log=log):
        assert [path.exists() for path in paths] == [True, True, False, False]
    (tmp_path / "responses.db.prefixes" / "m" / "v1" / "folder.state").mkdir()
    with capture_logs() as lines:
        async with open_app(settings, log=log):
            assert "cannot be deleted" in lines[0]["event"]
