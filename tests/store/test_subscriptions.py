"""Tails: nothing is missed, nothing comes twice, and a slow follower costs no memory."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.subscriptions import Subscription, Subscriptions
from antiphon.testing.run_check import batch


def taken(tail: Subscription, after: int) -> list[int]:
    """The first numbers of what is there."""
    firsts: list[int] = []
    while (found := tail.next_batch(after)) is not None:
        firsts.append(found.first)
        after = found.last
    return firsts


def test_a_follower_gets_what_is_put_from_now_on() -> None:
    tails = Subscriptions()
    tails.publish("t", "a", batch(0))
    with tails.subscribe("t", "a") as tail, tails.subscribe("t", "a") as other:
        tails.publish("t", "a", batch(1, 3))
        tails.publish("t", "b", batch(4))
        tails.publish("u", "a", batch(4))
        tails.publish("t", "a", batch(4))
        assert taken(tail, 0) == taken(other, 0) == [1, 4]
        assert not tail.is_stale and not other.is_stale


def test_what_a_follower_has_read_is_left_out() -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a") as tail:
        for first in (2, 4, 6):
            tails.publish("t", "a", batch(first, 2))
        assert taken(tail, 4) == [4, 6]  # the one that holds event 5 begins before it
        assert not tail.is_stale


def test_a_gap_is_said_and_nothing_behind_it_is_kept() -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a") as tail:
        tails.publish("t", "a", batch(3))
        assert tail.next_batch(1) is None and tail.is_stale
        tail.is_stale = False
        assert tail.next_batch(1) is None and not tail.is_stale


@given(st.integers(0, 400))
def test_a_slow_follower_costs_no_memory(count: int) -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a") as tail:
        for n in range(count):
            tails.publish("t", "a", batch(n))
        kept = taken(tail, -1)
        assert kept == ([] if tail.is_stale else list(range(count)))
        assert tail.is_stale == (count > 64)


async def test_a_waiting_follower_is_woken_by_all_that_happens() -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a") as tail, tails.subscribe("t", "b") as other:
        async with asyncio.timeout(30):
            for happens in (
                partial(tails.publish, "t", "a", batch(0)),
                partial(tails.mark_stale, [("t", "a")]),
                tails.mark_stale,
            ):
                waiting = asyncio.create_task(tail.wait())
                await asyncio.sleep(0)
                assert not waiting.done()
                happens()
                await waiting
                tail.next_batch(-1)
                tail.is_stale = False
            assert other.is_stale, "all were touched"
            other.is_stale = False
            tails.mark_stale([("t", "a"), ("t", "nobody")])
            assert tail.is_stale and not other.is_stale
            await tail.wait()  # what has happened is not waited for


async def test_who_stops_waiting_can_wait_again() -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a") as tail:
        waiting = asyncio.create_task(tail.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        tails.publish("t", "a", batch(0))
        async with asyncio.timeout(30):
            await tail.wait()
        assert taken(tail, -1) == [0]


def test_what_nobody_follows_is_forgotten() -> None:
    tails = Subscriptions()
    with tails.subscribe("t", "a"):
        with tails.subscribe("t", "a"):
            assert tails.subscribed_runs() == (("t", "a"),)
        assert tails.subscribed_runs() == (("t", "a"),)
    assert tails.subscribed_runs() == ()
