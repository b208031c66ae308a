"""A block that ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.http.middleware.request_context import ClientDisconnected
from antiphon.http.streaming.disconnect import DISCONNECT_EXTENSION, CancelOnDisconnect


class Client:
    """Of any server: who asks ``receive`` hears of it."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.scope: dict[str, Any] = {}

    async def receive(self) -> dict[str, str]:
        return await self.messages.get()

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


class Connected(Client):
    """Of a server that tells when a connection is lost: nobody need ask."""

    def __init__(self) -> None:
        super().__init__()
        self.disconnect_callbacks: set[Callable[[], None]] = set()
        self.is_lost = False
        self.scope = {"extensions": {DISCONNECT_EXTENSION: {"connection": self}}}

    async def receive(self) -> dict[str, str]:
        raise AssertionError("asked for nothing")

    def leave(self) -> None:
        self.is_lost = True
        for tell in tuple(self.disconnect_callbacks):
            tell()


@pytest.fixture(params=[Client, Connected])
async def client(request: pytest.FixtureRequest) -> Client:
    made: Client = request.param()
    return made


async def _left_in(client: Client, *, early: bool) -> None:
    loop = asyncio.get_running_loop()
    if early:
        client.leave()
    else:
        loop.call_soon(client.leave)
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


async def test_departure_cancels_what_is_awaited(client: Client) -> None:
    client.messages.put_nowait({"type": "http.request"})
    await _left_in(client, early=False)


async def test_so_does_one_that_came_before(client: Client) -> None:
    await _left_in(client, early=True)


async def test_a_block_that_ends_first_hears_nothing_of_a_later_departure(client: Client) -> None:
    async with CancelOnDisconnect(client.scope, client.receive):
        await asyncio.sleep(0)
    client.leave()
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_error_of_the_block_stays_what_it_is(client: Client) -> None:
    with pytest.raises(KeyError):
        async with CancelOnDisconnect(client.scope, client.receive):
            raise KeyError


async def test_a_cancellation_from_outside_stays_a_cancellation(client: Client) -> None:
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


async def test_a_receive_that_breaks_counts_as_departure() -> None:
    async def receive() -> dict[str, str]:
        raise OSError("gone")

    with pytest.raises(ClientDisconnected):
        async with CancelOnDisconnect({}, receive):
            await asyncio.Event().wait()
