"""The records of usage that wait for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from antiphon.errors import StoreError
from antiphon.runs import usage_counter
from antiphon.runs.usage_counter import UsageCounter, UsageMeter
from antiphon.store.usage import UsageLog, UsageRecord
from antiphon.wire.response import Usage


class Log:
    """A usage log that may not answer."""

    def __init__(self) -> None:
        self.is_away = False
        self.ids: list[str] = []

    async def add(self, records: Sequence[UsageRecord]) -> None:
        """Store records."""
        if self.is_away:
            raise StoreError("The store does not answer.")
        self.ids += [record.id for record in records]


def add(counter: UsageCounter, *ids: str) -> None:
    meter = UsageMeter(tenant="t", api_key=None, model="m", started=0, clock=lambda: 1.0)
    for id in ids:
        counter.add(meter.record_of(id, Usage()))


async def test_records_wait_for_the_store() -> None:
    log = Log()
    counter = UsageCounter(cast(UsageLog, log), clock=lambda: 1.0)
    log.is_away = True
    add(counter, "a", "b")
    await counter.flush()
    add(counter, "c")
    log.is_away = False
    await counter.flush()
    assert log.ids == ["a", "b", "c"]
    await counter.close()


async def test_records_above_the_limit_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The earlier records are written when the store answers again."""
    monkeypatch.setattr(usage_counter, "_MAX_RECORDS", 3)
    log = Log()
    counter = UsageCounter(cast(UsageLog, log), clock=lambda: 1.0)
    log.is_away = True
    add(counter, "a", "b")
    await counter.flush()
    add(counter, "c", "d", "e")
    await counter.flush()
    log.is_away = False
    await counter.close()
    assert log.ids == ["a", "b", "c"]


class SlowLog(Log):
    """A usage log that writes records when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing = asyncio.Event()
        self.may_write = asyncio.Event()

    async def add(self, records: Sequence[UsageRecord]) -> None:
        self.is_writing.set()
        await self.may_write.wait()
        await super().add(records)

    async def totals(self, query: Any) -> tuple[str, ...]:
        """Return the ids of the stored records."""
        return tuple(self.ids)


async def test_totals_include_records_that_are_being_written() -> None:
    log = SlowLog()
    counter: Any = UsageCounter(cast(UsageLog, log), clock=lambda: 1.0)
    add(counter, "a")
    async with asyncio.timeout(60):
        flush = asyncio.create_task(counter.flush())
        await log.is_writing.wait()
        totals = asyncio.create_task(counter.totals(None))
        await asyncio.sleep(0)
        log.may_write.set()
        assert await totals == ("a",)
        await flush
        await counter.close()
