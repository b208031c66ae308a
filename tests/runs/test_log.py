"""The log: batches of what is ready, any number of readers, and no memory for a slow one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from antiphon.runs.log import Log
from antiphon.wire.events import Event, Keepalive


def events(first: int, last: int) -> tuple[Event, ...]:
    return tuple(Keepalive(sequence_number=n) for n in range(first, last + 1))


async def numbers(log: Log, after: int = -1) -> list[int]:
    return [e.sequence_number async for batch in log.follow(after) for e in batch]


async def soon() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_reader_gets_all_that_is_ready_in_one_batch() -> None:
    log = Log()
    log.append(events(0, 1))
    log.append(events(2, 4))
    log.close()
    batches = [[e.sequence_number for e in batch] async for batch in log.follow()]
    assert batches == [[0, 1, 2, 3, 4]]


async def test_a_kept_log_serves_many_readers_from_anywhere() -> None:
    log = Log(kept=True)
    log.append(events(0, 2))
    early = asyncio.create_task(numbers(log))
    late = asyncio.create_task(numbers(log, 1))
    beyond = asyncio.create_task(numbers(log, 99))
    before = asyncio.create_task(numbers(log, -5))
    await soon()
    log.append(events(3, 4))
    log.close()
    async with asyncio.timeout(5):
        assert await early == [0, 1, 2, 3, 4]
        assert await late == [2, 3, 4]
        assert await beyond == []
        assert await before == [0, 1, 2, 3, 4]
    assert await numbers(log, 2) == [3, 4]


async def test_a_passing_log_forgets_what_was_read_and_holds_the_run_back() -> None:
    log = Log(room=3)
    log.append(events(0, 9))
    held = asyncio.create_task(log.ready())
    await soon()
    assert not held.done()
    async with aclosing(log.follow()) as batches:
        first = await anext(batches)
        assert [e.sequence_number for e in first] == list(range(10))
        async with asyncio.timeout(5):
            await held
        log.append(events(10, 10))
        assert [e.sequence_number for e in await anext(batches)] == [10]


async def test_a_muted_log_keeps_nothing_and_never_holds_the_run_back() -> None:
    log = Log(room=3)
    log.append(events(0, 9))
    held = asyncio.create_task(log.ready())
    await soon()
    log.mute()
    async with asyncio.timeout(5):
        await held
        log.append(events(10, 99))
        await log.ready()
    waiting = asyncio.create_task(log.wait())
    await soon()
    assert not waiting.done()
    log.close()
    async with asyncio.timeout(5):
        await waiting
    assert await numbers(log) == []


async def test_a_reader_that_leaves_is_not_waited_for() -> None:
    log = Log(kept=True)
    reader = asyncio.create_task(numbers(log))
    await soon()
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    log.append(events(0, 0))
    log.close()
    assert await numbers(log) == [0]
