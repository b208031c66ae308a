"""A block that ends when the client leaves."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.http.exchange import ClientLeft
from antiphon.http.presence import Presence


class Client:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def receive(self) -> dict[str, str]:
        return await self.messages.get()

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


async def test_departure_cancels_what_is_awaited() -> None:
    client = Client()
    client.messages.put_nowait({"type": "http.request"})
    cancelled = False
    client.leave()
    with pytest.raises(ClientLeft):
        async with Presence(client.receive):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over


async def test_a_block_that_ends_first_hears_nothing_of_a_later_departure() -> None:
    client = Client()
    async with Presence(client.receive):
        await asyncio.sleep(0)
    client.leave()
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_error_of_the_block_stays_what_it_is() -> None:
    client = Client()
    with pytest.raises(KeyError):
        async with Presence(client.receive):
            raise KeyError


async def test_a_cancellation_from_outside_stays_a_cancellation() -> None:
    client = Client()
    entered = asyncio.Event()

    async def block() -> None:
        async with Presence(client.receive):
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

    with pytest.raises(ClientLeft):
        async with Presence(receive):
            await asyncio.Event().wait()
