"""Who gets a slot, who waits, who is sent away."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import Overloaded
from antiphon.http.admission import AdmissionQueue


class Caller:
    """Holds a slot from when it gets one until it is told to go."""

    def __init__(
        self, admission: AdmissionQueue, tenant: str, order: list[str], name: str = ""
    ) -> None:
        self._go = asyncio.Event()
        self._order = order
        self.name = name or tenant
        self.task = asyncio.create_task(self._run(admission, tenant))

    async def _run(self, admission: AdmissionQueue, tenant: str) -> None:
        async with admission.slot(tenant):
            self._order.append(self.name)
            await self._go.wait()

    async def leave(self) -> None:
        self._go.set()
        await self.task
        await settle()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waits_for_a_slot_and_takes_it_in_order() -> None:
    admission, order = AdmissionQueue(1, 10), list[str]()
    callers = [Caller(admission, "t", order, name) for name in "abc"]
    await settle()
    assert (order, admission.running, admission.waiting) == (["a"], 1, 2)
    for caller in callers:
        await caller.leave()
    assert order == ["a", "b", "c"]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_flood_of_one_tenant_costs_another_one_turn() -> None:
    admission, order = AdmissionQueue(1, 10), list[str]()
    names = ["a1", "a2", "a3", "a4", "b1", "b2"]
    callers = {}
    for name in names:
        callers[name] = Caller(admission, name[0], order, name)
        await settle()
    for turn in range(len(names)):
        await callers[order[turn]].leave()
    assert order == ["a1", "a2", "b1", "a3", "b2", "a4"]


async def test_a_full_queue_refuses_at_once() -> None:
    admission, order = AdmissionQueue(1, 1, retry_after_s=7), list[str]()
    callers = [Caller(admission, "t", order), Caller(admission, "t", order)]
    await settle()
    with pytest.raises(Overloaded) as refusal:
        async with admission.slot("t"):
            pass
    assert refusal.value.status == 429
    assert refusal.value.retry_after_s == 7
    for caller in callers:
        await caller.leave()
    assert admission.running == 0


async def test_who_stops_waiting_is_passed_over() -> None:
    admission, order = AdmissionQueue(1, 2), list[str]()
    first, second, third = (Caller(admission, "t", order, name) for name in "abc")
    await settle()
    second.task.cancel()
    await settle()
    assert admission.waiting == 1
    await first.leave()
    assert order == ["a", "c"]
    await third.leave()
    assert admission.running == 0


async def test_a_slot_given_in_the_moment_of_leaving_is_not_lost() -> None:
    admission, order = AdmissionQueue(1, 2), list[str]()
    first, second = Caller(admission, "t", order, "a"), Caller(admission, "t", order, "b")
    await settle()
    first._go.set()
    await first.task  # the slot has just been handed to the second, which has not run yet
    second.task.cancel()
    await settle()
    assert second.task.cancelled()
    assert (admission.running, admission.waiting) == (0, 0)
    last = Caller(admission, "t", order, "c")
    await settle()
    assert order[-1] == "c"
    await last.leave()


async def test_a_block_that_raises_frees_its_slot() -> None:
    admission = AdmissionQueue(1, 0)
    with pytest.raises(KeyError):
        async with admission.slot("t"):
            raise KeyError
    async with admission.slot("t"):
        assert admission.running == 1
