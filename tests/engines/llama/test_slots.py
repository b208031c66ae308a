from __future__ import annotations

import asyncio

import pytest

from antiphon.engines.llama.slots import Slots


async def test_a_conversation_gets_its_slot_back() -> None:
    slots = Slots(3)
    first, second = (1, 2, 3, 4), (1, 2, 3, 5)
    mine, other = await slots.take(first), await slots.take(second)
    assert mine != other
    slots.give_back(mine, first)
    slots.give_back(other, second)
    assert await slots.take((*second, 9)) == other
    assert await slots.take((*first, 9)) == mine


async def test_what_begins_alike_does_not_displace() -> None:
    slots = Slots(2)
    system = tuple(range(100))
    mine = await slots.take((*system, 1))
    slots.give_back(mine, (*system, *range(200, 260)))
    assert await slots.take((*system, 2)) != mine


async def test_the_idle_longest_is_displaced() -> None:
    slots = Slots(2)
    for ids in ((1, 1), (2, 2)):
        slots.give_back(await slots.take(ids), ids)
    oldest = await slots.take((1, 1, 7))
    slots.give_back(oldest, (1, 1, 7))
    assert await slots.take((3, 3)) != oldest


async def test_a_template_may_write_the_last_tokens_differently() -> None:
    slots = Slots(2)
    mine = await slots.take(range(50))
    slots.give_back(mine, tuple(range(50)))
    assert await slots.take((*range(48), 7, 7, 7)) == mine


async def test_waits_its_turn_and_can_stop_waiting() -> None:
    slots = Slots(1)
    place = await slots.take((1,))
    tasks = [asyncio.create_task(slots.take((number,))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    slots.give_back(place, (1,))
    assert await tasks[1] == place
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert not tasks[2].done()
    slots.give_back(place, (1,))
    assert await tasks[2] == place
