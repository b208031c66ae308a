"""``CancelOnDisconnect`` on our server and on others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from antiphon.errors import ServerStopped
from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.streaming.disconnect import DISCONNECT_EXTENSION, CancelOnDisconnect
from antiphon.http.streaming.task_stream import TaskStream


class Client:
    """A client of any server: only ``receive`` reports its disconnect."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.scope: dict[str, Any] = {}

    async def receive(self) -> dict[str, str]:
        return await self.messages.get()

    def disconnect(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


class ClientOfAntiphonServer(Client):
    """A client of Antiphon's server, which reports disconnects through the extension."""

    def __init__(self) -> None:
        super().__init__()
        self.disconnect_callbacks: set[Callable[[], None]] = set()
        self.is_lost = self.is_stopping = False
        self.scope = {"extensions": {DISCONNECT_EXTENSION: {"connection": self}}}

    async def receive(self) -> dict[str, str]:
        raise AssertionError("receive must not be called")

    def disconnect(self) -> None:
        self.is_lost = True
        for tell in tuple(self.disconnect_callbacks):
            tell()


@pytest.fixture(params=[Client, ClientOfAntiphonServer])
async def client(request: pytest.FixtureRequest) -> Client:
    created: Client = request.param()
    return created


async def check_cancelled(client: Client, *, early: bool) -> None:
    loop = asyncio.get_running_loop()
    if early:
        client.disconnect()
    else:
        loop.call_soon(client.disconnect)
    cancelled = False
    with pytest.raises(ClientDisconnected):
        async with CancelOnDisconnect(client.scope, client.receive):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over


async def test_disconnect_cancels_the_block(client: Client) -> None:
    client.messages.put_nowait({"type": "http.request"})
    await check_cancelled(client, early=False)


async def test_disconnect_before_the_block_cancels_it(client: Client) -> None:
    await check_cancelled(client, early=True)


async def test_disconnect_after_the_block_is_ignored(client: Client) -> None:
    async with CancelOnDisconnect(client.scope, client.receive):
        await asyncio.sleep(0)
    client.disconnect()
    for _ in range(3):
        await asyncio.sleep(0)


async def test_error_of_the_block_is_raised_unchanged(client: Client) -> None:
    with pytest.raises(KeyError):
        async with CancelOnDisconnect(client.scope, client.receive):
            raise KeyError


async def test_outer_cancellation_stays_a_cancellation(client: Client) -> None:
    entered = asyncio.Event()

    async def block() -> None:
        async with CancelOnDisconnect(client.scope, client.receive):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_failing_receive_counts_as_disconnect() -> None:
    async def receive() -> dict[str, str]:
        raise OSError("gone")

    with pytest.raises(ClientDisconnected):
        async with CancelOnDisconnect({}, receive):
            await asyncio.Event().wait()


async def test_end_of_the_server_cancels_the_block() -> None:
    client = ClientOfAntiphonServer()

    def stop() -> None:
        client.is_stopping = True
        for tell in tuple(client.disconnect_callbacks):
            tell()

    asyncio.get_running_loop().call_soon(stop)
    with pytest.raises(ServerStopped):
        async with CancelOnDisconnect(client.scope, client.receive):
            await asyncio.Event().wait()


async def test_task_stream_ends_with_the_reason_if_the_server_stops() -> None:
    client = ClientOfAntiphonServer()
    sent = list[bytes]()

    async def events() -> AsyncGenerator[dict[str, str], None]:
        yield {"type": "step"}
        client.is_stopping = True
        for tell in tuple(client.disconnect_callbacks):
            tell()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await TaskStream(events(), 0)({**client.scope, "method": "GET"}, client.receive, send)
    assert b'"type":"step"' in sent[1]
    assert b"event: error" in sent[2] and b"The server was stopped" in sent[2]
