"""Tool sessions: opened only for requests that name the tool, and closed by the task that opened
them, however the response ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from antiphon.tools.base import ResponseContext, ToolFunction, ToolProvider, Toolset
from antiphon.wire.items import WebSearchCall
from antiphon.wire.tools import Function
from tests.conformance.asgi_clients import StreamingClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL, message_deltas
from tests.conformance.server import Ask, engine, local
from tests.conformance.stepped_backend import SteppedBackend


class CountingProvider(ToolProvider[Any]):
    """A tool provider that records which task opens and closes its sessions. ``functions``: the
    tool functions that it offers."""

    def __init__(self, functions: tuple[ToolFunction, ...] = ()) -> None:
        self._functions = functions
        self.opened: list[asyncio.Task[Any] | None] = []
        self.closed: list[asyncio.Task[Any] | None] = []

    def open(self, tool: Any, response: ResponseContext) -> AbstractAsyncContextManager[Toolset]:
        return self._session()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Toolset]:
        self.opened.append(asyncio.current_task())
        try:
            yield Toolset(functions=self._functions)
        finally:
            self.closed.append(asyncio.current_task())


SEARCH = {"type": "web_search"}


@pytest.mark.requirement("VN-52")
async def test_a_session_is_opened_only_for_a_request_with_the_tool(serve: Serve, ask: Ask) -> None:
    provider = CountingProvider()
    server = serve("Hello!", providers={"web_search": provider})
    await ask(server)
    await ask(server, tools=[TOOL])
    assert provider.opened == []
    await ask(server, tools=[TOOL, SEARCH])
    assert len(provider.opened) == 1


@pytest.mark.requirement("VN-52", "D-77")
async def test_the_task_that_opened_a_session_closes_it(serve: Serve, ask: Ask) -> None:
    provider = CountingProvider()
    server = serve("Hello!", providers={"web_search": provider})
    assert (await ask(server, tools=[SEARCH])).terminal_response["status"] == "completed"
    assert len(provider.opened) == 1 and provider.closed == provider.opened


@pytest.mark.requirement("D-77")
async def test_a_failed_response_closes_its_session(serve: Serve, ask: Ask) -> None:
    provider = CountingProvider()
    script = SteppedBackend([*message_deltas("Hel")[:2], KeyError("broken")])
    server = serve(script, providers={"web_search": provider})
    failed = await ask(server, tools=[SEARCH])
    assert failed.error is not None and failed.error["code"] == "server_error"
    assert len(provider.opened) == 1 and provider.closed == provider.opened


@pytest.mark.requirement("D-77")
async def test_a_client_that_disconnects_closes_its_session(serve: Serve) -> None:
    provider = CountingProvider()
    script = SteppedBackend([*message_deltas("Hel")[:2], asyncio.Event()])
    server = serve(script, providers={"web_search": provider})
    async with StreamingClient(server.app, tools=[SEARCH]) as line:
        while "delta" not in (await line.event())["type"]:
            pass
        assert provider.opened and not provider.closed
    async with asyncio.timeout(60):
        await script.closed.wait()
        while server.service.active_runs:
            await asyncio.sleep(0)
    assert provider.closed == provider.opened


@pytest.mark.requirement("D-74")
async def test_a_model_sees_the_tools_of_its_own_request_only(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["one", "two", "three"])
    look_up = ToolFunction(tool=Function(name="look_up"), initial_item=WebSearchCall())
    provider = CountingProvider((look_up,))
    server = serve(local(scripted_engine), providers={"web_search": provider})
    other = {**TOOL, "name": "get_time"}
    first = await ask(server, tools=[TOOL])
    await ask(server, tools=[other], previous_response_id=first.terminal_response["id"])
    await ask(server, previous_response_id=first.terminal_response["id"])
    searching = await ask(server, tools=[SEARCH])
    await ask(server, tools=[TOOL], previous_response_id=searching.terminal_response["id"])
    prompts = [scripted_engine.text(prompt) for prompt, _ in scripted_engine.requests]
    weather, time, none, search, later = prompts
    assert "get_weather" in weather and "get_time" not in weather
    assert "get_time" in time and "get_weather" not in time
    assert "get_time" not in none and "get_weather" not in none
    assert ["look_up" in text for text in prompts] == [False, False, False, True, False]
    assert "get_weather" not in search and "get_weather" in later
