"""The storage of a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from antiphon.bootstrap.app import open_app
from antiphon.bootstrap.storage import files_blobs, open_encryptor
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings, SandboxSettings
from antiphon.engines.llama.disk_states import DiskStates, StoredState
from antiphon.errors import SetupError
from antiphon.testing.memory_store.store import MemoryStore
from tests.harness import asgi_client


async def test_store_without_blobs_refuses_another_place_for_files(tmp_path: Path) -> None:
    settings, store = Settings(files=f"file://{tmp_path}"), MemoryStore()
    encryptor = await open_encryptor(settings, store)
    assert await files_blobs(settings, store, encryptor) is not None
    store.files.supports_blobs = False
    with pytest.raises(SetupError, match="files: this store keeps all contents itself"):
        await files_blobs(settings, store, encryptor)


async def test_states_of_what_is_not_stored_are_deleted_at_the_start(tmp_path: Path) -> None:
    """The server was killed before it deleted them, or they have expired. No model is loaded."""
    settings = Settings(
        store=f"sqlite:{tmp_path}/responses.db",
        models={"echo": Model(source="Hello there.", engine="scripted")},
        sandbox=SandboxSettings(kind="off"),
        file_search=FileSearchSettings(embeddings="off"),
    )
    log = structlog.get_logger()
    async with open_app(settings, log=log) as app, asgi_client(app) as client:
        body = {"model": "echo", "input": "hi"}
        response = (await client.post("/v1/responses", json=body)).json()["id"]
        conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    disk = DiskStates(tmp_path / "responses.db.prefixes" / "m" / "v1", 0)
    (tmp_path / "state").write_bytes(b"text")
    owners = (
        ("default", response),
        ("default", conversation),
        ("other", response),
        ("default", "resp_gone"),
    )
    paths = [
        disk.write(
            StoredState(
                scope=None,
                adapter=None,
                ids=b"",
                session=None,
                tenant=tenant,
                owner=owner,
                size=4,
            ),
            tmp_path / "state",
        )
        for tenant, owner in owners
    ]
    async with open_app(settings, log=log):
        assert [path.exists() for path in paths] == [True, True, False, False]
    (tmp_path / "responses.db.prefixes" / "m" / "v1" / "folder.state").mkdir()
    with capture_logs() as lines:
        async with open_app(settings, log=log):
            assert "cannot be deleted" in lines[0]["event"]
