"""Calls between processes: results, items, errors, cancellation, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import BackendError, InvalidRequest, Overloaded
from antiphon.inference.tokens import Chunk, Prompt
from antiphon.ipc.client import CallClient
from antiphon.ipc.server import CallServer
from antiphon.support.fair_threads import current_tenant


class Target:
    """What the tests call."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.cancelled = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def double(self, chunk: Chunk) -> Prompt:
        return Prompt(chunk.ids * 2)

    async def tenant(self) -> str:
        return await asyncio.to_thread(current_tenant.get)

    def note(self, text: str) -> None:
        self.notices.append(text)

    async def refuse(self, what: str) -> None:
        if what == "overloaded":
            raise Overloaded("Full.", retry_after_s=7, status=503)
        if what == "invalid":
            raise InvalidRequest("Bad.", param="input[1]", code="odd")
        raise KeyError(what)

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def count(self, last: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(last):
                yield number
                await asyncio.sleep(0)
        finally:
            self.cancelled.set()

    async def _hidden(self) -> None: ...

    def on_disconnect(self) -> None:
        self.disconnected.set()


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Target, CallClient, CallServer]]:
    target = Target()
    server = CallServer(lambda: target)
    await server.open(folder / "socket")
    client = CallClient(folder / "socket", on_lost=lambda: BackendError("Lost."))
    try:
        yield target, client, server
    finally:
        client.close()
        await server.close()


async def test_values_keep_their_types(tmp_path: Path) -> None:
    async with connected(tmp_path) as (target, client, _):
        assert await client.call("double", Chunk(ids=(1, 2)), returns=Prompt) == Prompt(
            (1, 2, 1, 2)
        )
        client.notify("note", "first")
        await client.call("note", "second")
        assert target.notices == ["first", "second"]


async def test_calls_work_for_the_tenant_of_their_caller(tmp_path: Path) -> None:
    """So tenants take turns in the other process, as they do in this one."""
    async with connected(tmp_path) as (_, client, _):

        async def ask(tenant: str) -> object:
            current_tenant.set(tenant)
            return await client.call("tenant", returns=str)

        names = ["a", "b", "a", ""]
        assert await asyncio.gather(*map(ask, names)) == names


async def test_errors_keep_their_class_and_fields(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client, _):
        with pytest.raises(Overloaded) as full:
            await client.call("refuse", "overloaded")
        assert (full.value.retry_after_s, full.value.status) == (7, 503)
        assert full.value.type == "server_error"
        with pytest.raises(InvalidRequest) as bad:
            await client.call("refuse", "invalid")
        assert (bad.value.param, bad.value.code, bad.value.message) == ("input[1]", "odd", "Bad.")
        with pytest.raises(BackendError, match="internal"):
            await client.call("refuse", "other")


@pytest.mark.parametrize(("method", "arguments"), [("_hidden", ()), ("none", ()), ("note", (1,))])
async def test_only_public_methods_with_valid_arguments(
    tmp_path: Path, method: str, arguments: tuple[Any, ...]
) -> None:
    async with connected(tmp_path) as (_, client, _):
        with pytest.raises(BackendError):
            await client.call(method, *arguments)


async def test_streams_items_and_stops_when_closed(tmp_path: Path) -> None:
    async with connected(tmp_path) as (target, client, _):
        assert [n async for n in client.stream("count", 5, returns=int)] == [0, 1, 2, 3, 4]
        target.cancelled.clear()
        async with aclosing(client.stream("count", 10**9, returns=int)) as numbers:
            assert await anext(numbers) == 0
        await asyncio.wait_for(target.cancelled.wait(), 60)


async def test_cancelled_caller_cancels_the_call(tmp_path: Path) -> None:
    async with connected(tmp_path) as (target, client, _):
        waiting = asyncio.create_task(client.call("wait"))
        await client.call("note", "the call has begun")
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.wait_for(target.cancelled.wait(), 60)


async def test_lost_connection_fails_its_calls_and_the_next_call_opens_another(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as (target, client, server):
        waiting = asyncio.create_task(client.call("wait"))
        await client.call("note", "the call has begun")
        await server.close()
        with pytest.raises(BackendError):
            await waiting
        assert target.disconnected.is_set()
        with pytest.raises(BackendError, match="Lost"):
            await client.call("note", "nobody listens")
        await server.open(tmp_path / "socket")
        await client.call("note", "again")
        assert target.notices[-1] == "again"


async def test_large_frames_arrive_whole(tmp_path: Path) -> None:
    async with connected(tmp_path) as (target, client, _):
        text = "x" * 3_000_000
        await client.call("note", text)
        assert target.notices == [text]


async def test_drain_waits_for_the_last_caller(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client, server):
        await server.drain(60)  # nobody has called
        await client.call("double", Chunk(ids=(1,)), returns=Prompt)
        await server.drain(0)  # the limit
        draining = asyncio.create_task(server.drain(60))
        await client.call("double", Chunk(ids=(1,)), returns=Prompt)
        assert not draining.done()
        client.close()
        async with asyncio.timeout(60):
            await draining
