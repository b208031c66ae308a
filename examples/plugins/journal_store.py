"""A store in memory that appends each response to a file: ``store = "journal:///path"``."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from antiphon.store.records import StoredResponse
from antiphon.testing.memory_store.store import MemoryStore


class JournalStore(MemoryStore):
    """Inherits everything but ``save``. A complete store implements ``antiphon.Store``."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def save(self, tenant: str, stored: StoredResponse, **more: Any) -> bool:
        is_saved = await super().save(tenant, stored, **more)
        if is_saved:
            await asyncio.to_thread(self._append, msgspec.json.encode(stored.response) + b"\n")
        return is_saved

    def _append(self, line: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(line)


async def open_store(url: str) -> JournalStore:
    """Open the store of a URL ``journal://…``."""
    return JournalStore(Path(urlsplit(url).path))
