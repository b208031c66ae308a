"""What an observer hears of a store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.errors import StoreError
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.records import ClaimQuery
from antiphon.store.upkeep.store_observer import observe_store
from antiphon.store.usage import UsageRecord
from antiphon.testing.memory_store.store import MemoryStore


class Observer:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, float, bool]] = []
        self.appends: list[tuple[int, int]] = []
        self.usage: list[UsageRecord] = []
        self.followers: list[Subscription] = []

    def on_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        self.operations.append((operation, seconds, failed))

    def on_append(self, batches: int, events: int) -> None:
        self.appends.append((batches, events))

    def on_usage(self, records: Sequence[UsageRecord]) -> None:
        self.usage += records

    def on_follower(self, subscription: Subscription) -> None:
        self.followers.append(subscription)


class BrokenStore(MemoryStore):
    """A store that does not answer."""

    async def check_writable(self) -> None:
        raise StoreError("The store does not answer.")


async def test_operations_are_timed_and_failures_counted() -> None:
    observer, times = Observer(), iter((1.0, 3.0, 5.0, 6.0, 7.0, 8.0))
    store = observe_store(BrokenStore(), observer, lambda: next(times))
    assert await store.load("default", "resp_unknown") is None
    with pytest.raises(StoreError):
        await store.check_writable()
    await store.runs.heartbeat(ClaimQuery(owner="owner"))
    assert observer.operations == [
        ("load", 2.0, False),
        ("check_writable", 1.0, True),
        ("runs.heartbeat", 1.0, False),
    ]


async def test_usage_and_followers_are_reported() -> None:
    observer = Observer()
    store = observe_store(MemoryStore(), observer, lambda: 0.0)
    record = UsageRecord(id="resp_1", start=1, tenant="default", model="tiny")
    await store.usage_log.add((record,))
    with store.runs.subscribe("default", "resp_1") as subscription:
        assert observer.followers == [subscription]
    assert observer.usage == [record]
