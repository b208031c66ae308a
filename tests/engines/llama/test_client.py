"""The client of llama.cpp's server, on every event loop that serves Antiphon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.engines.llama.client import LlamaClient


def loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    if sys.platform != "win32":
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.mark.parametrize("kind", loop_factories())
def test_requests_are_answered_on_every_event_loop(kind: str, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /health HTTP/1.1\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"status":"ok"}')
        await writer.drain()
        writer.close()

    async def ask() -> object:
        path = str(tmp_path / "llama.sock")
        async with await asyncio.start_unix_server(answer, path), asyncio.timeout(60):
            return await LlamaClient(path, 0, "key").get("/health")

    with asyncio.Runner(loop_factory=loop_factories()[kind]) as runner:
        assert runner.run(ask()) == {"status": "ok"}
