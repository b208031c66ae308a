"""The storage of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.bootstrap.storage import files_blobs, open_encryptor
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.testing.memory_store.store import MemoryStore


async def test_store_without_blobs_refuses_another_place_for_files(tmp_path: Path) -> None:
    settings, store = Settings(files=f"file://{tmp_path}"), MemoryStore()
    encryptor = await open_encryptor(settings, store)
    assert await files_blobs(settings, store, encryptor) is not None
    store.files.supports_blobs = False
    with pytest.raises(SetupError, match="files: this store keeps all contents itself"):
        await files_blobs(settings, store, encryptor)
