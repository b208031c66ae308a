"""Tails: nothing is missed, nothing comes twice, and a slow follower costs no memory."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.subscriptions import Subscription, Tails
from antiphon.testing.run_check import batch


def taken(tail: Subscription, after: int) -> list[int]:
    """The first numbers of what is there."""
    firsts: list[int] = []
    while (found := tail.take(after)) is not None:
        firsts.append(found.first)
        after = found.last
    return firsts


def test_a_follower_gets_what_is_put_from_now_on() -> None:
    tails = Tails()
    tails.put("t", "a", batch(0))
    with tails.follow("t", "a") as tail, tails.follow("t", "a") as other:
        tails.put("t", "a", batch(1, 3))
        tails.put("t", "b", batch(4))
        tails.put("u", "a", batch(4))
        tails.put("t", "a", batch(4))
        assert taken(tail, 0) == taken(other, 0) == [1, 4]
        assert not tail.dirty and not other.dirty


def test_what_a_follower_has_read_is_left_out() -> None:
    tails = Tails()
    with tails.follow("t", "a") as tail:
        for first in (2, 4, 6):
            tails.put("t", "a", batch(first, 2))
        assert taken(tail, 4) == [4, 6]  # the one that holds event 5 begins before it
        assert not tail.dirty


def test_a_gap_is_said_and_nothing_behind_it_is_kept() -> None:
    tails = Tails()
    with tails.follow("t", "a") as tail:
        tails.put("t", "a", batch(3))
        assert tail.take(1) is None and tail.dirty
        tail.dirty = False
        assert tail.take(1) is None and not tail.dirty


@given(st.integers(0, 400))
def test_a_slow_follower_costs_no_memory(count: int) -> None:
    tails = Tails()
    with tails.follow("t", "a") as tail:
        for n in range(count):
            tails.put("t", "a", batch(n))
        kept = taken(tail, -1)
        assert kept == ([] if tail.dirty else list(range(count)))
        assert tail.dirty == (count > 64)


async def test_a_waiting_follower_is_woken_by_all_that_happens() -> None:
    tails = Tails()
    with tails.follow("t", "a") as tail, tails.follow("t", "b") as other:
        async with asyncio.timeout(30):
            for happens in (
                partial(tails.put, "t", "a", batch(0)),
                partial(tails.touch, [("t", "a")]),
                tails.touch,
            ):
                waiting = asyncio.create_task(tail.wait())
                await asyncio.sleep(0)
                assert not waiting.done()
                happens()
                await waiting
                tail.take(-1)
                tail.dirty = False
            assert other.dirty, "all were touched"
            other.dirty = False
            tails.touch([("t", "a"), ("t", "nobody")])
            assert tail.dirty and not other.dirty
            await tail.wait()  # what has happened is not waited for


async def test_who_stops_waiting_can_wait_again() -> None:
    tails = Tails()
    with tails.follow("t", "a") as tail:
        waiting = asyncio.create_task(tail.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        tails.put("t", "a", batch(0))
        async with asyncio.timeout(30):
            await tail.wait()
        assert taken(tail, -1) == [0]


def test_what_nobody_follows_is_forgotten() -> None:
    tails = Tails()
    with tails.follow("t", "a"):
        with tails.follow("t", "a"):
            assert tails.followed() == (("t", "a"),)
        assert tails.followed() == (("t", "a"),)
    assert tails.followed() == ()
