"""Threads that tenants share: results, errors, cancellation, and the end of the pool."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from antiphon.support.fair_threads import FairThreads, current_tenant, default_threads

WAIT_S = 60


def test_results_errors_and_arguments_reach_the_caller() -> None:
    with FairThreads(1, "test") as pool:
        assert pool.submit(divmod, 7, 3).result(WAIT_S) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result(WAIT_S)
        assert pool.submit(int, "11", base=2).result(WAIT_S) == 3


class Argument:
    """Something that a call gets and returns."""


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_call_waits_for_the_garbage_collection(fails: bool) -> None:
    def work(argument: Argument) -> Argument:
        if fails:
            raise ZeroDivisionError
        return argument

    async def call(argument: Argument) -> None:
        with suppress(ZeroDivisionError):
            await asyncio.to_thread(work, argument)

    gc.disable()
    try:
        with FairThreads(1, "test") as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            argument = Argument()
            known = weakref.ref(argument)
            await call(argument)
            del argument
            await asyncio.to_thread(int)  # the thread has done with the call before
            assert known() is None
    finally:
        gc.enable()


async def test_cancelled_call_that_waits_for_its_turn_keeps_no_argument() -> None:
    """A client may hang up and send the next large body, again and again."""
    opened = threading.Event()
    with FairThreads(1, "test") as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        running = asyncio.ensure_future(asyncio.to_thread(opened.wait, WAIT_S))
        await asyncio.sleep(0)
        argument = Argument()
        known = weakref.ref(argument)
        waiting = asyncio.ensure_future(asyncio.to_thread(id, argument))
        del argument
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        del waiting
        gc.collect()
        assert known() is None
        opened.set()
        await running


def test_tenants_take_turns_and_leave_threads_to_others() -> None:
    opened, done = threading.Event(), list[str]()

    def work(tenant: str) -> None:
        done.append(tenant)
        assert opened.wait(WAIT_S)

    with FairThreads(2, "test", max_per_tenant=1) as pool:
        current_tenant.set("flood")
        flood = [pool.submit(work, f"flood {number}") for number in range(4)]
        current_tenant.set("victim")
        victims = [pool.submit(work, f"victim {number}") for number in range(2)]
        while len(done) < 2:
            pass
        assert done == ["flood 0", "victim 0"]
        assert flood[3].cancel()
        opened.set()
        for future in (*flood[:3], *victims):
            future.result(WAIT_S)
    assert sorted(done) == ["flood 0", "flood 1", "flood 2", "victim 0", "victim 1"]
    current_tenant.set("")


def test_pool_does_the_waiting_work_before_it_closes() -> None:
    done = list[int]()
    pool = FairThreads(2, "test", max_per_tenant=1)
    for number in range(50):
        pool.submit(done.append, number)
    pool.shutdown()
    assert done == list(range(50))


def test_default_threads_are_never_all_of_one_tenant() -> None:
    with default_threads() as pool:
        barrier, blocked = threading.Event(), list[int]()
        current_tenant.set("flood")
        for number in range(40):
            pool.submit(lambda number=number: (blocked.append(number), barrier.wait(WAIT_S)))
        current_tenant.set("victim")
        assert pool.submit(int, "5").result(WAIT_S) == 5
        assert not barrier.is_set()
        barrier.set()
    current_tenant.set("")
