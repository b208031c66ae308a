"""Admission: slots, queue, refusals."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import Overloaded
from antiphon.limits.admission import AdmissionQueue


class Caller:
    """A request that holds its slot until it is released."""

    def __init__(
        self, admission: AdmissionQueue, tenant: str, order: list[str], name: str = ""
    ) -> None:
        self.go = asyncio.Event()
        self._order = order
        self.name = name or tenant
        self.task = asyncio.create_task(self._run(admission, tenant))

    async def _run(self, admission: AdmissionQueue, tenant: str) -> None:
        async with admission.slot(tenant):
            self._order.append(self.name)
            await self.go.wait()

    async def release(self) -> None:
        self.go.set()
        await self.task
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_slots_are_granted_in_order() -> None:
    admission, order = AdmissionQueue(1, 10), list[str]()
    callers = [Caller(admission, "t", order, name) for name in "abc"]
    await settle()
    assert (order, admission.running, admission.waiting) == (["a"], 1, 2)
    for caller in callers:
        await caller.release()
    assert order == ["a", "b", "c"]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_tenants_take_turns() -> None:
    admission, order = AdmissionQueue(1, 10), list[str]()
    names = ["a1", "a2", "a3", "a4", "b1", "b2"]
    callers = {}
    for name in names:
        callers[name] = Caller(admission, name[0], order, name)
        await settle()
    for turn in range(len(names)):
        await callers[order[turn]].release()
    assert order == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_full_queue_raises_at_once() -> None:
    admission, order = AdmissionQueue(1, 1, retry_after_s=7), list[str]()
    callers = [Caller(admission, "t", order), Caller(admission, "t", order)]
    await settle()
    with pytest.raises(Overloaded) as refusal:
        async with admission.slot("t"):
            pass
    assert refusal.value.status == 429
    assert refusal.value.retry_after_s == 7
    for caller in callers:
        await caller.release()
    assert admission.running == 0


async def test_cancelled_waiter_is_skipped() -> None:
    admission, order = AdmissionQueue(1, 2), list[str]()
    first, second, third = (Caller(admission, "t", order, name) for name in "abc")
    await settle()
    second.task.cancel()
    await settle()
    assert admission.waiting == 1
    await first.release()
    assert order == ["a", "c"]
    await third.release()
    assert admission.running == 0


async def test_slot_granted_during_cancellation_is_released() -> None:
    admission, order = AdmissionQueue(1, 2), list[str]()
    first, second = Caller(admission, "t", order, "a"), Caller(admission, "t", order, "b")
    await settle()
    first.go.set()
    await first.task  # the second has been granted the slot but has not run yet
    second.task.cancel()
    await settle()
    assert second.task.cancelled()
    assert (admission.running, admission.waiting) == (0, 0)
    last = Caller(admission, "t", order, "c")
    await settle()
    assert order[-1] == "c"
    await last.release()


async def test_exception_releases_the_slot() -> None:
    admission = AdmissionQueue(1, 0)
    with pytest.raises(KeyError):
        async with admission.slot("t"):
            raise KeyError
    async with admission.slot("t"):
        assert admission.running == 1


async def test_flood_leaves_places_in_the_queue_to_others() -> None:
    admission, order = AdmissionQueue(1, 4), list[str]()
    flood = [Caller(admission, "a", order, f"a{number}") for number in range(5)]
    await settle()
    victim = Caller(admission, "b", order)
    await settle()
    with pytest.raises(Overloaded):
        await flood[-1].task
    assert (admission.waiting, admission.running) == (4, 1)
    await flood[0].release()
    assert order == ["a0", "b"], "the other tenant is next"
    await victim.release()
    for caller in flood[1:-1]:
        await caller.release()
    assert (admission.waiting, admission.running) == (0, 0)


async def test_full_queue_refuses_the_tenant_that_fills_it() -> None:
    admission, order = AdmissionQueue(1, 4), list[str]()
    callers = [Caller(admission, name[0], order, name) for name in ("a0", "a1", "a2", "b1", "b2")]
    await settle()
    for tenant in "ab":
        with pytest.raises(Overloaded):
            async with admission.slot(tenant):
                pass
    for turn in range(5):
        await next(caller for caller in callers if caller.name == order[turn]).release()
    assert order == ["a0", "b1", "a1", "b2", "a2"]


async def test_tenant_is_admitted_up_to_its_share() -> None:
    admission, order = AdmissionQueue(4, 4, max_per_tenant=3), list[str]()
    flood = [Caller(admission, "a", order, f"a{number}") for number in range(6)]
    await settle()
    assert (admission.running, admission.waiting) == (3, 3)
    victim = Caller(admission, "b", order)
    await settle()
    assert order[-1] == "b", "it does not wait"
    for caller in (victim, *flood):
        await caller.release()
