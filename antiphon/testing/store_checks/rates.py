"""Checks that a store fulfils its contract for the rate limits of clients."""

from __future__ import annotations

from antiphon.store.base import Store
from antiphon.store.rates import RateReport, RateState

#: Requests per minute. With this limit, a bucket does not fill noticeably during a check.
_SLOW = 1


async def sums_up_what_processes_take(store: Store) -> None:
    reports = [RateReport(scope=name, per_minute=_SLOW, admitted_count=3) for name in ("b", "a")]
    for level in (-2, -5):
        states = await store.rates.exchange(str(level), reports)
        assert [round(state.level) for state in states] == [level, level]
    (state,) = await store.rates.exchange("x", [RateReport(scope="a", per_minute=_SLOW)])
    assert round(state.level) == -5


async def a_bucket_starts_full_and_follows_its_limit(store: Store) -> None:
    (state,) = await store.rates.exchange(
        "x", [RateReport(scope="a", per_minute=100, admitted_count=10)]
    )
    assert state == RateState(90.0, 0)
    (state,) = await store.rates.exchange(
        "x", [RateReport(scope="a", per_minute=5, admitted_count=86)]
    )
    assert 4 <= state.level < 5
    assert await store.rates.exchange("x", []) == ()


async def tells_what_other_processes_run(store: Store) -> None:
    async def report(owner: str, running: int) -> int:
        reports = [RateReport(scope="a", running=running), RateReport(scope=f"b{owner}")]
        first, second = await store.rates.exchange(owner, reports)
        assert second == RateState()
        return first.remote_running_count

    assert [await report("x", 3), await report("y", 2), await report("z", 0)] == [0, 3, 5]
    assert [await report("x", 1), await report("y", 0), await report("z", 0)] == [2, 1, 1]
