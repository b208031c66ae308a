"""From a thread to the event loop: nothing is lost, little is said."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antiphon.engines.common.thread_channel import ThreadChannel, merge_chunks
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk


async def read(handover: ThreadChannel) -> list[Chunk]:
    async with asyncio.timeout(60):
        return [chunk async for chunk in handover]


async def test_chunks_arrive_in_order() -> None:
    handover = ThreadChannel(asyncio.get_running_loop())

    def give() -> None:
        for id in range(500):
            assert handover.send(Chunk((id,)))
        handover.send(Chunk(finish="stop"))

    thread = threading.Thread(target=give)
    thread.start()
    chunks = await read(handover)
    thread.join()
    assert [id for chunk in chunks for id in chunk.ids] == list(range(500))
    assert chunks[-1].finish == "stop"


async def test_queued_chunks_are_merged() -> None:
    handover = ThreadChannel(asyncio.get_running_loop())
    handover.send(Chunk(cached_tokens=7))
    handover.send(Chunk((1,)))
    handover.send(Chunk((2,), finish="length"))
    assert await read(handover) == [Chunk((1, 2), finish="length", cached_tokens=7)]


async def test_error_is_raised_after_queued_chunks() -> None:
    handover = ThreadChannel(asyncio.get_running_loop())
    handover.send(Chunk((1,)))
    handover.send(BackendError("over"))
    chunks = handover.__aiter__()
    assert await anext(chunks) == Chunk((1,))
    with pytest.raises(BackendError, match="over"):
        await anext(chunks)


def test_nobody_reads_when_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    handover = ThreadChannel(loop)
    loop.close()
    assert not handover.send(Chunk((1,)))


def test_merging_no_chunks_gives_none() -> None:
    assert merge_chunks([]) is None


async def test_unexpected_exception_becomes_the_cause() -> None:
    for error in (KeyError("/where"), MemoryError()):
        handover = ThreadChannel(asyncio.get_running_loop())
        handover.fail(error)
        with pytest.raises(BackendError, match=r"^The engine failed\.$") as raised:
            await read(handover)
        assert raised.value.__cause__ is error
    expected = BackendError("The generation was aborted.")
    handover = ThreadChannel(asyncio.get_running_loop())
    handover.fail(expected)
    with pytest.raises(BackendError) as raised:
        await read(handover)
    assert raised.value is expected and expected.__cause__ is None
