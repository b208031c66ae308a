"""Read the deltas of replies, and write replies, in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing

from antiphon.backends.base import DeltaSink, Reply
from antiphon.stream.deltas import Delta
from antiphon.support.push import send

__all__ = ["batches_of", "collect", "deltas_of", "push_all"]


async def collect(reply: Reply) -> list[Delta]:
    """Return all deltas of a reply."""
    found: list[Delta] = []
    await reply.pump(found.extend)
    return found


async def batches_of(reply: Reply) -> AsyncGenerator[tuple[Delta, ...], None]:
    """Yield the deltas of a reply as its sink gets them. The reply pauses until the caller asks for
    more. Closing the iterator cancels the reply."""
    given: asyncio.Queue[tuple[Delta, ...] | None] = asyncio.Queue()

    def take(batch: tuple[Delta, ...]) -> Awaitable[None]:
        given.put_nowait(batch)
        return given.join()

    pump = asyncio.create_task(reply.pump(take))
    pump.add_done_callback(lambda task: given.put_nowait(None))
    try:
        while (batch := await given.get()) is not None:
            yield batch
            given.task_done()
        await pump
    finally:
        pump.cancel()
        await asyncio.wait([pump])


async def deltas_of(reply: Reply) -> AsyncGenerator[Delta, None]:
    """Yield the deltas of a reply one by one. See ``batches_of``."""
    async with aclosing(batches_of(reply)) as batches:
        async for batch in batches:
            for delta in batch:
                yield delta


async def push_all(batches: AsyncGenerator[tuple[Delta, ...], None], sink: DeltaSink) -> None:
    """Give the deltas that an iterator yields to a sink, and close the iterator at the end. With
    this function, the reply of a test can be written as an iterator."""
    async with aclosing(batches):
        async for batch in batches:
            await send(sink, batch)
