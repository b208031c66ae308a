"""Limits of requests over several processes, by a clock of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from antiphon.errors import Overloaded, StoreError
from antiphon.limits.clients import LimitScope
from antiphon.limits.rate_limits import RateLimits
from antiphon.store.rates import RateReport, RateState, RateStore
from antiphon.store.values import SERVER
from antiphon.testing.memory_store.values import MemoryValues
from antiphon.wire.admin.client_limits import ClientLimits


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def scope(name: str = "k", **limits: int) -> LimitScope:
    return LimitScope("key", name, ClientLimits(**limits))


class Rates(RateStore):
    """The store of all processes. Counts its calls, and may be down."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(MemoryValues(lambda: None), clock)
        self.calls = 0
        self.is_down = False

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.is_down:
            raise StoreError("down")
        return await super().exchange(owner, reports)


async def admitted(limits: RateLimits, *scopes: LimitScope, tries: int) -> int:
    permits = [await limits.take(scopes) for _ in range(tries)]
    return sum(all(each.wait_s == 0 for each in permit) for permit in permits)


def process(rates: RateStore, clock: Clock, owner: str = "a") -> RateLimits:
    return RateLimits(rates, owner=owner, timer=clock)


def two_processes() -> tuple[Clock, Rates, RateLimits, RateLimits]:
    clock = Clock()
    rates = Rates(clock)
    return clock, rates, process(rates, clock, "1"), process(rates, clock, "2")


async def assert_refused(limits: RateLimits, *scopes: LimitScope) -> None:
    with pytest.raises(Overloaded, match="concurrent_requests"):
        async with limits.running(scopes):
            raise AssertionError


async def test_a_bucket_holds_one_minute_of_requests() -> None:
    clock = Clock()
    rates = Rates(clock)
    limits, limited = process(rates, clock), scope(requests_per_minute=2)
    permits = [(await limits.take((limited,)))[0] for _ in range(3)]
    assert [permit.wait_s for permit in permits] == [0, 0, 30]
    assert [permit.remaining for permit in permits] == [1, 0, 0]
    assert [permit.full_s for permit in permits] == [30, 60, 60]
    clock.now = 10_000
    assert await admitted(limits, limited, tries=3) == 2
    assert await admitted(limits, scope(), tries=3) == 3


async def test_processes_share_a_bucket_and_pay_back_what_was_too_much() -> None:
    clock, _, one, two = two_processes()
    limited = scope(requests_per_minute=60)
    total = 0
    for _ in range(600):  # ten minutes, two processes of which each gets the whole rate
        total += await admitted(one, limited, tries=1) + await admitted(two, limited, tries=1)
        clock.now += 1
        for each in (one, two):
            await each.exchange()
    assert abs(total - 660) <= 2, "a full bucket and ten minutes"


async def test_requests_in_a_row_cost_no_round_trips() -> None:
    clock = Clock()
    rates = Rates(clock)
    limits = process(rates, clock)
    assert await admitted(limits, scope(requests_per_minute=1000), tries=500) == 500
    assert rates.calls == 1
    clock.now += 5  # its view is old now
    assert await admitted(limits, scope(requests_per_minute=1000), tries=1) == 1
    assert rates.calls == 2


async def test_a_request_needs_room_in_all_scopes() -> None:
    clock = Clock()
    limits = process(Rates(clock), clock)
    small, large = scope("s", requests_per_minute=1), scope("l", requests_per_minute=5)
    assert await admitted(limits, small, large, tries=4) == 1
    assert await admitted(limits, large, tries=9) == 4, "the refused ones took nothing"


async def test_without_a_store_a_process_limits_by_itself() -> None:
    clock = Clock()
    rates = Rates(clock)
    rates.is_down = True
    limits, limited = process(rates, clock), scope(requests_per_minute=3)
    assert await admitted(limits, limited, tries=5) == 3
    rates.is_down = False
    await limits.exchange()
    (state,) = await rates.exchange("b", [RateReport(scope=limited.id, per_minute=3)])
    assert state.level == 0, "reported later"


async def test_running_requests_of_all_processes_count() -> None:
    _, _, one, two = two_processes()
    limited = scope(concurrent_requests=2)
    async with one.running([limited]):
        await one.exchange()
        async with two.running([limited]):
            await assert_refused(two, limited)
    async with one.running([limited]), one.running([limited]):
        await assert_refused(one, scope("o"), limited)


async def test_requests_that_have_ended_in_other_processes_do_not_count() -> None:
    clock, _, one, two = two_processes()
    limited = scope(concurrent_requests=1)
    for _ in range(2):
        async with one.running([limited]):
            await one.exchange()
            await assert_refused(two, limited)
        await one.exchange()
        async with two.running([limited]):  # it reads the counts again before it refuses
            await two.exchange()
        await two.exchange()
        clock.now += 5


async def test_old_counts_of_other_processes_are_read_again() -> None:
    clock, _, one, two = two_processes()
    limited = scope(concurrent_requests=1)
    async with two.running([limited]):
        pass
    clock.now += 5
    async with one.running([limited]):
        await one.exchange()
        await assert_refused(two, limited)


async def test_without_a_store_requests_of_other_processes_do_not_count() -> None:
    _, rates, one, two = two_processes()
    limited = scope(concurrent_requests=1)
    async with one.running([limited]):
        await one.exchange()
        await assert_refused(two, limited)
        rates.is_down = True
        async with two.running([limited]):
            pass


async def test_scopes_are_forgotten_a_minute_after_their_buckets_were_full() -> None:
    clock, values = Clock(), MemoryValues(lambda: None)
    rates = RateStore(values, clock)
    for name in ("a", "b"):
        await rates.exchange(
            "x", [RateReport(scope=name, per_minute=6, admitted_count=1, running=1)]
        )
    clock.now += 70
    await rates.exchange("x", [RateReport(scope="c", running=1), RateReport(scope="b", running=1)])
    stored = await values.read(SERVER, "rates")
    assert stored is not None
    assert set(json.loads(stored)["scopes"]) == {"b", "c"}
