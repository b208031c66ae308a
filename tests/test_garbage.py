"""Requests leave nothing for the garbage collector, whose full run takes as long as several
requests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

import antiphon
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings, SandboxSettings
from bench.peers.upstream import MODEL, ScriptedUpstream
from tests.harness import asgi_client
from tests.tiny_models.tiny_tools import GGUF


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(ScriptedUpstream, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def garbage_of_the_package() -> list[str]:
    """The types of the package's objects that only the garbage collector frees."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sorted({repr(type(each)) for each in gc.garbage if _is_own(each)})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def _is_own(value: object) -> bool:
    return type(value).__module__.startswith("antiphon.")


def _settings(model: Model) -> Settings:
    return Settings(
        store="memory:",
        models={"scripted": model},
        sandbox=SandboxSettings(kind="off"),
        file_search=FileSearchSettings(embeddings="off"),
    )


@pytest.mark.parametrize("engine", ["chat_completions", "responses"])
@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["plain", "streamed"])
async def test_requests_leave_no_garbage(
    upstream: str, engine: Any, fields: dict[str, Any]
) -> None:
    model = Model(source=upstream, engine=engine, upstream_model=MODEL, context_size=8_192)
    settings = _settings(model)
    body = {"model": "scripted", "input": "hi", **fields}
    async with (
        antiphon.open_app(settings, log=structlog.get_logger()) as app,
        asgi_client(app) as client,
    ):
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await client.post("/v1/responses", json=body)).status_code == 200
            assert garbage_of_the_package() == []
        finally:
            gc.enable()


async def test_answers_and_unloading_of_an_embedded_model_leave_no_garbage() -> None:
    settings = _settings(Model(source=str(GGUF), context_size=512, threads=1))
    body = {"model": "scripted", "input": "hi", "stream": True, "max_output_tokens": 4}
    async with (
        antiphon.open_app(settings, log=structlog.get_logger()) as app,
        asgi_client(app) as client,
    ):
        assert (await client.post("/v1/responses", json=body)).status_code == 200
        gc.collect()
        gc.disable()
        try:
            assert (await client.post("/v1/responses", json=body)).status_code == 200
            assert garbage_of_the_package() == []
            unloaded = await client.post("/antiphon/models/scripted/unload")
            assert unloaded.json()["status"]["value"] == "unloaded"
            # jinja2's environment is a cycle of its own, which refers to no part of the model
            assert [each for each in garbage_of_the_package() if ".template." not in each] == []
        finally:
            gc.enable()
