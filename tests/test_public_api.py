"""``import antiphon``: the public names, loaded lazily, and an app mounted in another one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
import structlog
import uvicorn
import websockets

import antiphon
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings, SandboxSettings
from antiphon.errors import SetupError
from antiphon.public_api import PUBLIC
from scripts.public_api_page import public_modules
from tests.harness import asgi_client

EXAMPLE = Path(__file__).parents[1] / "examples" / "embedding" / "mounted_app.py"


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return its output."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_import_loads_no_other_module_of_the_package_and_no_dependency() -> None:
    code = (
        "import sys, antiphon\n"
        "heavy = ('antiphon.', 'msgspec', 'starlette', 'uvicorn', 'structlog', 'asyncio')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])\n"
    )
    assert run_python(code) == "[]"


def test_error_class_loads_no_server() -> None:
    code = (
        "import sys\nfrom antiphon import SetupError\n"
        "print([name for name in sys.modules if name.startswith(('starlette', 'uvicorn'))])\n"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("name", antiphon.__all__)
def test_every_public_name_is_available(name: str) -> None:
    assert getattr(antiphon, name) is not None
    assert name in dir(antiphon)


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from antiphon import *", names)
    assert set(antiphon.__all__) <= set(names)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        antiphon.absent  # noqa: B018


def test_public_names_are_those_of_their_modules() -> None:
    assert antiphon.Settings is Settings
    assert antiphon.SetupError is SetupError


# --- public modules ------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
_IMPORT = re.compile(r"^ *from (antiphon[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)


def test_table_lists_each_module_once_and_all_of_them_exist() -> None:
    listed = [module for group in PUBLIC for module in group.modules]
    assert len(listed) == len(set(listed))
    modules = public_modules()
    assert set(antiphon.__all__) == set(modules["antiphon"])
    assert all(modules.values())


def test_contracts_among_the_public_names_are_in_public_modules() -> None:
    """Who implements a contract also needs the types beside it."""
    modules = public_modules()
    owners = {getattr(getattr(antiphon, name), "__module__", "") for name in antiphon.__all__}
    bases = {owner for owner in owners if owner.endswith(".base")}
    assert len(bases) > 5 and bases <= set(modules)


def test_documentation_and_examples_import_only_public_names() -> None:
    modules = public_modules()
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
        *ROOT.glob("*.md"),
    ]
    internal = {
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in pages
        for module, names in _IMPORT.findall(path.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", names)
        if name not in modules.get(module, ())
    }
    assert internal == set()


# --- open_app ------------------------------------------------------------------------------------

ECHO = {"echo": Model(source="Hello there.", engine="scripted")}


async def test_open_app_closes_its_service() -> None:
    settings = Settings(
        store="memory:",
        models=ECHO,
        sandbox=SandboxSettings(kind="off"),
        file_search=FileSearchSettings(embeddings="off"),
    )
    async with antiphon.open_app(settings, log=structlog.get_logger()) as app:
        assert app.service.is_ready
        assert [model.name for model in app.models.all()] == ["echo"]
        async with asgi_client(app) as client:
            assert (await client.get("/ready")).status_code == 200
    assert not app.service.is_ready


async def test_failed_start_is_a_setup_error(tmp_path: Path) -> None:
    settings = Settings(store="other://x", models=ECHO)
    with pytest.raises(antiphon.SetupError, match="store"):
        async with antiphon.open_app(settings, log=structlog.get_logger()):
            pass


# --- the example ---------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's module, with settings for a scripted model."""
    config = tmp_path / "antiphon.toml"
    config.write_text(
        'store = "memory:"\n[models.echo]\nsource = "One two."\nengine = "scripted"\n'
    )
    monkeypatch.setenv("ANTIPHON_CONFIG", str(config))
    spec = importlib.util.spec_from_file_location("mounted_app", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def uvicorn_server(app: Any) -> AsyncIterator[str]:
    """Serve an app by an ordinary uvicorn; yields its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="on", log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def test_mounted_app_serves_the_official_client(example: ModuleType) -> None:
    async with (
        uvicorn_server(example.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/ai/v1", api_key="none") as client,
    ):
        first = await client.responses.create(model="echo", input="Hi")
        assert first.output_text == "One two."
        types, text = [], ""
        stream = await client.responses.create(
            model="echo", input="Again", previous_response_id=first.id, stream=True
        )
        async for event in stream:
            types.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        assert text == "One two."
        assert (types[0], types[-1]) == ("response.created", "response.completed")
        assert (await client.responses.retrieve(first.id)).output_text == "One two."
        with pytest.raises(openai.NotFoundError, match="Unknown request URL: GET /ai/v1/absent"):
            await client.get("/absent", cast_to=object)


async def test_mounted_app_serves_websockets(example: ModuleType) -> None:
    async with uvicorn_server(example.app) as url:
        address = f"{url.replace('http', 'ws')}/ai/v1/responses"
        async with websockets.connect(address) as socket, asyncio.timeout(60):
            await socket.send('{"type": "response.create", "model": "echo", "input": "Hi"}')
            types = [json.loads(await socket.recv())["type"]]
            while types[-1] != "response.completed":
                types.append(json.loads(await socket.recv())["type"])
    assert types[0] == "response.created"


async def test_mounted_app_leaves_the_other_routes_alone(example: ModuleType) -> None:
    async with uvicorn_server(example.app) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/")).text == "My own page"
        assert (await client.get("/v1/models")).status_code == 404
        assert (await client.get("/ai/health")).status_code == 200
        assert (await client.get("/ai/metrics")).status_code == 200


async def test_mounted_app_needs_a_key_except_for_health(
    example: ModuleType, tmp_path: Path
) -> None:
    config = tmp_path / "antiphon.toml"
    digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"
    config.write_text(config.read_text() + f'\n[[keys]]\ntenant = "t"\nsha256 = "{digest}"\n')
    async with uvicorn_server(example.app) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/ai/health")).status_code == 200
        assert (await client.get("/ai/v1/models")).status_code == 401
        key = {"authorization": "Bearer key"}
        assert (await client.get("/ai/v1/models", headers=key)).status_code == 200
