"""Fixtures of the conformance tests: a server, and every way to send a request to it."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from antiphon.store.base import Store
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.server import (
    FOREGROUND,
    MODES,
    Answer,
    Ask,
    Server,
    backend_of,
    send_in_mode,
)
from tests.harness import official_client
from tests.stalls import without_stalls
from tests.stores import KINDS, POSTGRES, open_empty_store

Serve = Callable[..., Server]
Clients = Callable[..., openai.AsyncOpenAI]
#: A mode of a client that waits for the run, and one of a client that does not.
PAIRS_OF_MODES = (
    ("plain", "background stream"),
    ("stream", "resumed"),
    ("websocket", "background"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in two modes, which depend on the test's name. With ``--every-mode``, run it in
    all modes. A test that also has the fixture ``store`` runs over SQLite and PostgreSQL too, in
    the modes ``plain`` and ``resumed``, because ``resumed`` reads stored events.
    """
    names = set(metafunc.fixturenames)
    modes = _modes_of(metafunc)
    if {"ask", "store"} <= names:
        pairs = [(mode, "memory") for mode in modes]
        for mode in ("plain", "resumed"):
            pairs += [(mode, "sqlite"), pytest.param(mode, *POSTGRES.values, marks=POSTGRES.marks)]
        metafunc.parametrize(("ask", "store"), pairs, indirect=True)
    elif "ask" in names:
        metafunc.parametrize("ask", modes, indirect=True)
    elif "store" in names:
        metafunc.parametrize("store", KINDS, indirect=True)


def _modes_of(metafunc: pytest.Metafunc) -> Sequence[str]:
    if metafunc.config.getoption("--every-mode"):
        return tuple(MODES)
    return PAIRS_OF_MODES[zlib.crc32(metafunc.function.__name__.encode()) % len(PAIRS_OF_MODES)]


@pytest.fixture
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind, which its server closes."""
    return await open_empty_store(request.param, request, tmp_path)


@pytest.fixture
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[Serve]:
    """Return a function that starts a server: ``serve(script)``.

    A script is texts, deltas, an engine or a backend. Further arguments are the policy's. Every
    server is stopped at the end. The test fails if it blocks the event loop.
    """
    servers: list[Server] = []

    def start(script: Any = "Hello there!", *, on: Store | None = None, **policy: Any) -> Server:
        servers.append(Server(backend_of(script), on or MemoryStore(), **policy))
        return servers[-1]

    async with AsyncExitStack() as stack:
        if inspect.iscoroutinefunction(request.function):
            await stack.enter_async_context(without_stalls())
        yield start
    for server in servers:
        await server.close()


@pytest.fixture
def script() -> Any:
    """What the model of the fixture ``server`` plays, in the forms of ``serve``."""
    return "Hello there!"


@pytest.fixture
def server_options() -> dict[str, Any]:
    """Further arguments of ``serve`` for the fixture ``server``."""
    return {}


@pytest.fixture
async def server(serve: Serve, script: Any, server_options: dict[str, Any]) -> Server:
    """A server for tests that need only one."""
    return serve(script, **server_options)


@pytest.fixture
async def client_of() -> AsyncIterator[Clients]:
    """Return a function: ``client_of(app, key)`` is OpenAI's client of an app in this process."""
    async with AsyncExitStack() as stack:
        clients: list[openai.AsyncOpenAI] = []

        def create(app: Any, key: str = "none") -> openai.AsyncOpenAI:
            clients.append(official_client(app, api_key=key))
            return clients[-1]

        yield create
        for client in clients:
            await stack.enter_async_context(client)


@pytest.fixture
def ask(request: pytest.FixtureRequest) -> Ask:
    """Return a function that sends a request in each mode: ``await ask(server, input=…)``."""

    return _ask_in_mode(request.param)


@pytest.fixture(params=FOREGROUND)
def ask_foreground(request: pytest.FixtureRequest) -> Ask:
    """Return a function like ``ask``, for each mode in which the client waits for its answer."""
    return _ask_in_mode(request.param)


def _ask_in_mode(mode: str) -> Ask:
    async def send(server: Server, **body: Any) -> Answer:
        return await send_in_mode(mode, server, body)

    return send
