"""The fixtures of conformance tests: a server, and every way to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.memory.store import MemoryStore
from antiphon.testing.postgres import Postgres
from tests.conformance.served import FOREGROUND, MODES, Answer, Ask, Server, backend_of, put

Serve = Callable[..., Server]

#: Where answers are kept. A test that asks for ``stores`` runs over each of them.
STORES = ("memory", "sqlite", "postgres")


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture(params=STORES)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "postgres":
        database: Postgres = request.getfixturevalue("database")
        return await open_store(await database.fresh())
    return await open_store(f"sqlite:{tmp_path}/antiphon.db")


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """``serve(script)``: texts, deltas, an engine or a backend; further arguments are the policy's.
    Every server is stopped at the end."""
    servers: list[Server] = []

    def start(script: Any = "Hello there!", *, on: Store | None = None, **policy: Any) -> Server:
        servers.append(Server(backend_of(script), on or MemoryStore(), **policy))
        return servers[-1]

    yield start
    for server in servers:
        await server.close()


@pytest.fixture(params=MODES)
def ask(request: pytest.FixtureRequest) -> Ask:
    """``await ask(server, input=…)`` in each of the ways there are."""

    return _asking(request.param)


@pytest.fixture(params=FOREGROUND)
def wait(request: pytest.FixtureRequest) -> Ask:
    """The same in each of the ways of a client that waits for its answer."""
    return _asking(request.param)


def _asking(mode: str) -> Ask:
    async def asked(server: Server, **body: Any) -> Answer:
        return await put(mode, server, body)

    return asked
