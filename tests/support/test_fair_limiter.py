"""Slots that tenants share. No test waits: the order in which slots are granted is what counts."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.support.fair_limiter import FairLimiter, tenant_share


class Holder:
    """A task that takes a slot and holds it until it is released."""

    def __init__(self, limiter: FairLimiter, name: str, order: list[str]) -> None:
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self._run(limiter, name, order))

    async def _run(self, limiter: FairLimiter, name: str, order: list[str]) -> None:
        async with limiter.slot(name[0]):
            order.append(name)
            await self.done.wait()

    async def release(self) -> None:
        self.done.set()
        await self.task
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def start(limiter: FairLimiter, names: list[str], order: list[str]) -> dict[str, Holder]:
    holders = {name: Holder(limiter, name, order) for name in names}
    await settle()
    return holders


async def release_in_order(holders: dict[str, Holder], order: list[str]) -> None:
    for turn in range(len(holders)):
        await holders[order[turn]].release()


async def test_flood_delays_another_tenant_by_one_slot() -> None:
    limiter, order = FairLimiter(1), list[str]()
    flood = await start(limiter, [f"a{number}" for number in range(50)], order)
    victim = await start(limiter, ["b0"], order)
    assert (order, limiter.waiting) == (["a0"], 50)
    await flood["a0"].release()
    assert order == ["a0", "b0"]
    await victim["b0"].release()
    for holder in list(flood.values())[1:]:
        await holder.release()
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_tenants_take_turns() -> None:
    limiter, order = FairLimiter(1), list[str]()
    holders = await start(limiter, ["a1", "a2", "a3", "b1", "b2", "c1"], order)
    await release_in_order(holders, order)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_free_slot_goes_to_the_tenant_that_holds_fewest() -> None:
    limiter, order = FairLimiter(4), list[str]()
    holders = await start(limiter, ["a1", "a2", "a3", "b1", "a4", "b2", "b3"], order)
    for name in ("a1", "a2"):
        await holders[name].release()
    assert order == ["a1", "a2", "a3", "b1", "b2", "a4"], "each of them holds two"
    await release_in_order(holders, order)


async def test_tenant_holds_its_share_at_most() -> None:
    limiter, order = FairLimiter(3, max_per_tenant=2), list[str]()
    flood = await start(limiter, ["a1", "a2", "a3", "a4"], order)
    assert order == ["a1", "a2"]
    other = await start(limiter, ["b1"], order)
    assert order == ["a1", "a2", "b1"], "a slot was left for others"
    await other["b1"].release()
    assert limiter.running == 2
    await release_in_order(flood, ["a1", "a2", "a3", "a4"])


async def test_caller_that_needs_much_is_not_overtaken_forever() -> None:
    limiter = FairLimiter(10, max_per_tenant=8)
    await limiter.acquire("a", amount=4)
    await limiter.acquire("b", amount=3)
    large = asyncio.create_task(limiter.acquire("b", amount=5))
    later = asyncio.create_task(limiter.acquire("a", amount=1))
    newcomer = asyncio.create_task(limiter.acquire("c", amount=1))
    await settle()
    assert newcomer.done(), "it holds the least"
    assert not large.done() and not later.done()
    limiter.release("a", 4)
    await settle()
    assert large.done() and later.done()
    assert limiter.running == 10


async def test_cancelled_caller_that_needs_much_lets_others_pass() -> None:
    limiter = FairLimiter(10)
    await limiter.acquire("a", amount=4)
    large = asyncio.create_task(limiter.acquire("b", amount=8))
    small = asyncio.create_task(limiter.acquire("a", amount=2))
    await settle()
    assert not small.done()
    large.cancel()
    await settle()
    assert small.done() and (limiter.running, limiter.waiting) == (6, 0)


async def test_caller_that_needs_more_than_all_gets_it_alone() -> None:
    limiter = FairLimiter(10, max_per_tenant=5)
    await limiter.acquire("a", amount=1)
    large = asyncio.create_task(limiter.acquire("a", amount=20))
    await settle()
    assert not large.done()
    limiter.release("a")
    await settle()
    assert large.done() and limiter.running == 20
    limiter.release("a", 20)
    assert limiter.running == 0


async def test_cancelled_caller_frees_its_place() -> None:
    limiter, order = FairLimiter(1), list[str]()
    holders = await start(limiter, ["a1", "a2", "b1"], order)
    holders["a2"].task.cancel()
    await holders["a1"].release()  # before the cancelled task has run
    assert order == ["a1", "b1"]
    assert limiter.waiting == 0
    await holders["b1"].release()
    assert limiter.running == 0


async def test_cancellation_after_the_grant_releases_the_slot() -> None:
    limiter, order = FairLimiter(1), list[str]()
    holders = await start(limiter, ["a1", "a2", "a3"], order)
    holders["a1"].done.set()
    await holders["a1"].task  # the second has been granted the slot but has not run yet
    holders["a2"].task.cancel()
    await settle()
    assert order[-1] == "a3"
    await holders["a3"].release()
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_newest_caller_can_be_rejected() -> None:
    limiter, order = FairLimiter(1), list[str]()
    holders = await start(limiter, ["a1", "a2", "a3"], order)
    assert limiter.most_waiting() == "a"
    limiter.reject_newest("a", ValueError("no room"))
    with pytest.raises(ValueError, match="no room"):
        await holders["a3"].task
    await holders["a1"].release()
    await holders["a2"].release()
    assert (order, limiter.most_waiting()) == (["a1", "a2"], None)


@pytest.mark.parametrize(("total", "share", "slots"), [(256, 0.75, 192), (1, 0.75, 1), (8, 1, 8)])
def test_share_is_at_least_one_slot(total: int, share: float, slots: int) -> None:
    assert tenant_share(total, share) == slots


async def test_priorities_order_the_callers_of_a_tenant() -> None:
    limiter, granted = FairLimiter(1), list[int]()

    async def hold(priority: int) -> None:
        async with limiter.slot("a", priority=priority):
            granted.append(priority)

    async with limiter.slot("a"):
        tasks = [asyncio.create_task(hold(priority)) for priority in (2, 0, 1, 0, -1)]
        await settle()
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
    await asyncio.gather(*tasks[2:], tasks[0])
    assert granted == [-1, 0, 1, 2]
    assert (limiter.running, limiter.waiting) == (0, 0)


async def test_larger_limit_admits_who_waits() -> None:
    limiter = FairLimiter(1)
    await limiter.acquire("a")
    waiting = asyncio.create_task(limiter.acquire("b"))
    await asyncio.sleep(0)
    assert limiter.waiting == 1
    limiter.set_limits(2)
    await asyncio.wait_for(waiting, 60)
    limiter.set_limits(1)
    limiter.release("a")
    assert not limiter.has_free_slot("a")
    limiter.release("b")
    assert limiter.has_free_slot("a")


async def test_a_tenant_gives_way_to_one_that_holds_fewer_slots() -> None:
    limiter = FairLimiter(3)
    for tenant in ("a", "a", "b"):
        assert limiter.try_acquire(tenant)
    assert not limiter.gives_way("a")
    waiting = [asyncio.create_task(limiter.acquire(tenant)) for tenant in ("a", "b")]
    await asyncio.sleep(0)
    assert limiter.gives_way("a") and not limiter.gives_way("b")
    waiting[1].cancel()
    await asyncio.wait(waiting[1:])
    assert not limiter.gives_way("a")
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert not limiter.gives_way("a")
