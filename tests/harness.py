"""Clients of an app in this process, and the fixtures of real servers.

A conftest that imports the fixtures gives its tests a server and OpenAI's client for it. All tests
share one server, which ``shared_setup`` describes. A module that needs another one overrides
``server_setup``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec import Struct

from tests.e2e.server import Server, serving

if TYPE_CHECKING:
    import openai

#: Seconds for one request of OpenAI's client.
_TIMEOUT_S = 120


def asgi_client(app: Any, *, address: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
    """Return a client of an ASGI app. ``address``: the address from which it seems to call.
    ``options``: those of the client."""
    transport = httpx.ASGITransport(app, client=(address, 123))
    return httpx.AsyncClient(transport=transport, **{"base_url": "http://localhost", **options})


def official_client(target: Any, **options: Any) -> openai.AsyncOpenAI:
    """Return OpenAI's client, which never retries. ``target``: the ``/v1`` URL of a server, or an
    ASGI app. ``options``: those of the client."""
    import openai

    if isinstance(target, str):
        place: dict[str, Any] = {"base_url": target}
    else:
        # OpenAI's client sets the base URL of its requests itself.
        http = httpx.AsyncClient(transport=httpx.ASGITransport(target))
        place = {"base_url": "http://localhost/v1", "http_client": http}
    fixed = {"api_key": "none", "max_retries": 0, "timeout": _TIMEOUT_S}
    return openai.AsyncOpenAI(**{**fixed, **place, **options})


class ServerSetup(Struct, frozen=True, kw_only=True):
    """What a real server serves, as text of its settings. By default, the embedded model."""

    settings: str = ""
    model: str = ""


def scene(when: str, *turns: str) -> str:
    """Return a scene for a model of the engine ``replay``, which answers ``when`` in ``turns``."""
    import json

    return f"[[scenes]]\nwhen = {json.dumps(when)}\nturns = {json.dumps(turns)}\n"


@pytest.fixture(scope="session")
def shared_setup() -> ServerSetup:
    """The server that modules share. A conftest may override it."""
    return ServerSetup()


@pytest.fixture(scope="session")
def shared_server(
    shared_setup: ServerSetup, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("shared")
    with serving(folder, shared_setup.settings, model=shared_setup.model) as running:
        yield running


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the module's own server."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server_setup() -> ServerSetup | None:
    """What the module's own server serves. None: the module uses the shared server."""
    return None


@pytest.fixture(scope="module")
def server(
    server_setup: ServerSetup | None, server_folder: Path, request: pytest.FixtureRequest
) -> Iterator[Server]:
    """A server process."""
    if server_setup is None:
        yield request.getfixturevalue("shared_server")
    else:
        with serving(server_folder, server_setup.settings, model=server_setup.model) as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's client for the server."""
    import openai

    with openai.OpenAI(
        base_url=server.url, api_key="none", max_retries=0, timeout=_TIMEOUT_S
    ) as opened:
        yield opened
