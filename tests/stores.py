"""Empty stores of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from tests.real.postgres import Postgres

#: With a database server, so `make e2e` runs these tests.
POSTGRES = pytest.param("postgres", marks=pytest.mark.e2e)
KINDS = ("memory", "sqlite", POSTGRES)


async def open_empty_store(kind: str, request: pytest.FixtureRequest, folder: Path) -> Store:
    """Open a store for the test of ``request``. Files are in ``folder``."""
    if kind == "postgres":
        database: Postgres = request.getfixturevalue("database")
        return await open_store(await database.create_migrated_database())
    return MemoryStore() if kind == "memory" else await open_store(f"sqlite:{folder}/antiphon.db")
