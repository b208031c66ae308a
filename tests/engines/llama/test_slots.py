from __future__ import annotations

import asyncio

import pytest

from antiphon.engines.llama.kept_states import StateGroup
from antiphon.engines.llama.slots import COPY_COST, MIN_SHARED, Slots
from antiphon.engines.llama.state_owners import StateOwner


async def test_conversation_returns_to_its_slot() -> None:
    slots = Slots(3)
    first, second = (1, 2, 3, 4), (1, 2, 3, 5)
    mine, other = await slots.acquire(first), await slots.acquire(second)
    assert mine != other
    slots.release(mine, first)
    slots.release(other, second)
    assert await slots.acquire((*second, 9)) == other
    assert await slots.acquire((*first, 9)) == mine


async def test_short_shared_prefix_does_not_displace_a_conversation() -> None:
    slots = Slots(2)
    head = tuple(range(MIN_SHARED - 1))
    mine = await slots.acquire((*head, 1000))
    slots.release(mine, (*head, *range(200, 260)))
    assert await slots.acquire((*head, 1001)) != mine


async def test_prompt_gets_the_slot_with_the_longest_shared_prefix() -> None:
    slots = Slots(3)
    head = tuple(range(2 * MIN_SHARED))
    longer = await slots.acquire((*head, 1000))
    shorter = await slots.acquire((*head, 1001))
    slots.release(longer, (*head, 1000, 1001, 1002, *range(2000, 3000)))
    slots.release(shorter, (*head, *range(3000, 4000)))
    assert await slots.acquire((*head, 1000, 1001, 5)) == longer


async def test_long_state_is_not_copied_for_a_few_shared_tokens() -> None:
    """A copy costs more than these tokens."""
    slots = Slots(2)
    head = tuple(range(MIN_SHARED + 3))
    long = await slots.acquire((*head, 1000))
    slots.release(long, (*head, *range(2000, 2000 + 4 * COPY_COST)))
    short = await slots.acquire((*head, 1001))
    assert short != long
    slots.release(short, (*head, *range(3000, 3050)))
    assert await slots.acquire((*head, 1002)) == short


async def test_longest_idle_slot_is_reused() -> None:
    slots = Slots(2)
    for ids in ((1, 1), (2, 2)):
        slots.release(await slots.acquire(ids), ids)
    oldest = await slots.acquire((1, 1, 7))
    slots.release(oldest, (1, 1, 7))
    assert await slots.acquire((3, 3)) != oldest


async def test_a_template_may_write_the_last_tokens_differently() -> None:
    slots = Slots(2)
    mine = await slots.acquire(range(50))
    slots.release(mine, tuple(range(50)))
    assert await slots.acquire((*range(48), 7, 7, 7)) == mine


async def test_prompt_waits_for_the_ending_generation_that_it_continues() -> None:
    slots, ids = Slots(2), tuple(range(20))
    ending = await slots.acquire(ids)
    slots.expect_release(ending, ids)
    stranger = await slots.acquire((99,))
    assert stranger != ending
    slots.release(stranger, (99,))
    waiting, cancelled = (asyncio.create_task(slots.acquire((*ids, n))) for n in (20, 21))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not waiting.done()
    slots.release(ending, ids)
    assert await waiting == ending
    # The cancelled wait holds nothing: the other slot can be acquired.
    assert await slots.acquire((*ids, 22)) == stranger


async def test_waits_its_turn_and_can_stop_waiting() -> None:
    slots = Slots(1)
    place = await slots.acquire((1,))
    tasks = [asyncio.create_task(slots.acquire((number,))) for number in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    slots.release(place, (1,))
    assert await tasks[1] == place
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert not tasks[2].done()
    slots.release(place, (1,))
    assert await tasks[2] == place


async def test_slot_of_another_scope_is_not_reused() -> None:
    slots, ids = Slots(2), tuple(range(20))
    mine = await slots.acquire(ids, StateGroup("a"))
    slots.release(mine, ids)
    other = await slots.acquire((*ids, 1), StateGroup("b"))
    assert other.number != mine.number
    slots.release(other, (*ids, 1))
    again = await slots.acquire((*ids, 2), StateGroup("a"))
    assert (again.number, again.is_reusable) == (mine.number, True)
    foreign = await slots.acquire((*ids, 3), StateGroup("c"))
    assert not foreign.is_reusable


async def test_generation_that_never_started_leaves_a_foreign_slot() -> None:
    slots, ids = Slots(1), (1, 2, 3)
    slots.release(await slots.acquire(ids, StateGroup("a")), ids)
    stopped = await slots.acquire(ids, StateGroup("b"))
    slots.release(stopped, ids, is_started=False)
    assert not (await slots.acquire(ids, StateGroup("b"))).is_reusable


async def test_waiting_tenants_are_served_in_turn() -> None:
    slots = Slots(1)
    flooding = StateOwner(tenant="flood")
    slot = await slots.acquire((0,), owner=flooding)
    flood = [asyncio.create_task(slots.acquire((n,), owner=flooding)) for n in range(20)]
    await asyncio.sleep(0)
    victim = asyncio.create_task(slots.acquire((99,), owner=StateOwner(tenant="victim")))
    await asyncio.sleep(0)
    slots.release(slot, (0,))
    slot = await victim
    assert not any(task.done() for task in flood)
    for task in flood:
        slots.release(slot, ())
        slot = await task
