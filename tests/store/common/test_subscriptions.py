"""Subscriptions: no event is missed or delivered twice, and a slow reader costs no memory."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.store.common.subscriptions import Subscription, Subscriptions
from antiphon.testing.store_checks.runs import batch


def read_all(subscription: Subscription, after: int) -> list[int]:
    """Return the first sequence numbers of the buffered batches."""
    firsts: list[int] = []
    while (found := subscription.next_batch(after)) is not None:
        firsts.append(found.first)
        after = found.last
    return firsts


def test_subscription_gets_batches_from_now_on() -> None:
    subscriptions = Subscriptions()
    subscriptions.publish("t", "a", batch(0))
    with (
        subscriptions.subscribe("t", "a") as subscription,
        subscriptions.subscribe("t", "a") as other,
    ):
        subscriptions.publish("t", "a", batch(1, 3))
        subscriptions.publish("t", "b", batch(4))
        subscriptions.publish("u", "a", batch(4))
        subscriptions.publish("t", "a", batch(4))
        assert read_all(subscription, 0) == read_all(other, 0) == [1, 4]
        assert not subscription.is_stale and not other.is_stale


def test_batches_already_read_are_skipped() -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a") as subscription:
        for first in (2, 4, 6):
            subscriptions.publish("t", "a", batch(first, 2))
        assert read_all(subscription, 4) == [4, 6]  # the batch with event 5 starts at event 4
        assert not subscription.is_stale


def test_gap_marks_stale_and_clears_the_buffer() -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a") as subscription:
        subscriptions.publish("t", "a", batch(3))
        assert subscription.next_batch(1) is None and subscription.is_stale
        subscription.is_stale = False
        assert subscription.next_batch(1) is None and not subscription.is_stale


@given(st.integers(0, 400))
def test_buffer_is_bounded(count: int) -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a") as subscription:
        for n in range(count):
            subscriptions.publish("t", "a", batch(n))
        remaining = read_all(subscription, -1)
        assert remaining == ([] if subscription.is_stale else list(range(count)))
        assert subscription.is_stale == (count > 64)


def test_bytes_of_the_buffer_are_bounded() -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a") as subscription:
        large = [replace(batch(n), lines=b"x" * 400_000) for n in range(4)]
        for each in large[:2]:
            subscriptions.publish("t", "a", each)
        assert read_all(subscription, -1) == [0, 1]
        for each in large[1:]:
            subscriptions.publish("t", "a", each)
        assert subscription.is_stale and not subscription.pending


async def test_every_change_wakes_a_waiting_reader() -> None:
    subscriptions = Subscriptions()
    with (
        subscriptions.subscribe("t", "a") as subscription,
        subscriptions.subscribe("t", "b") as other,
    ):
        async with asyncio.timeout(60):
            for happens in (
                partial(subscriptions.publish, "t", "a", batch(0)),
                partial(subscriptions.mark_stale, [("t", "a")]),
                subscriptions.mark_stale,
            ):
                waiting = asyncio.create_task(subscription.wait())
                await asyncio.sleep(0)
                assert not waiting.done()
                happens()
                await waiting
                subscription.next_batch(-1)
                subscription.is_stale = False
            assert other.is_stale, "mark_stale() without keys reaches all"
            other.is_stale = False
            subscriptions.mark_stale([("t", "a"), ("t", "nobody")])
            assert subscription.is_stale and not other.is_stale
            await subscription.wait()  # returns at once


async def test_wait_can_be_cancelled_and_repeated() -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a") as subscription:
        waiting = asyncio.create_task(subscription.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        subscriptions.publish("t", "a", batch(0))
        async with asyncio.timeout(60):
            await subscription.wait()
        assert read_all(subscription, -1) == [0]


def test_closed_subscriptions_are_removed() -> None:
    subscriptions = Subscriptions()
    with subscriptions.subscribe("t", "a"):
        with subscriptions.subscribe("t", "a"):
            assert subscriptions.subscribed_runs() == (("t", "a"),)
        assert subscriptions.subscribed_runs() == (("t", "a"),)
    assert subscriptions.subscribed_runs() == ()
