"""The event log writer: how long it waits for events that share an append."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any
from unittest.mock import AsyncMock

import pytest

from antiphon.runs.background.event_log_writer import EventLogWriter, LogSink
from antiphon.store.records import Append
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.runs import begin_run
from antiphon.wire.events import OutputTextDelta

FLUSH_S = 8.0


class SlowRuns:
    """Appends that take the next of these times, in seconds of the clock."""

    def __init__(self, times_s: Sequence[float]) -> None:
        self.now = 0.0
        self._times_s = iter(times_s)

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        self.now += next(self._times_s)
        return frozenset()


async def rests_after(times_s: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make appends that take these times, then one more. Return the pause before each."""
    rests: list[float] = []
    sleep = asyncio.sleep
    runs: Any = SlowRuns((*times_s, 0))

    async def record_rest(seconds: float) -> None:
        rests.append(seconds)
        runs.now += seconds
        await sleep(0)

    claim = await begin_run(MemoryStore(), "a")
    monkeypatch.setattr(asyncio, "sleep", record_rest)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: runs.now)
    writer = EventLogWriter(runs, flush_s=FLUSH_S)
    sink = LogSink(
        writer,
        runs,
        claim,
        array("I"),
        conversation=None,
        expires_at=lambda: None,
        webhooks=AsyncMock(return_value=()),
        usage=lambda response: None,
        conclude=lambda end, steering: end,
        clock=lambda: 1_000.0,
    )
    for number in range(2, 3 + len(times_s)):
        delta = OutputTextDelta(
            item_id="msg", output_index=0, content_index=0, delta="a", sequence_number=number
        )
        sink.write((delta,))
        await writer.wait_until_idle()
    return rests


async def test_appends_begin_five_milliseconds_apart_on_a_fast_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests = await rests_after((0, 0.0005, 0.002, 0.006), monkeypatch)
    assert rests == pytest.approx([0, 0.005, 0.0045, 0.0031, 0], abs=1e-6)


async def test_slow_store_lengthens_the_pause_with_each_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One slow append may have waited for a processor. Many slow appends mean a slow store, and an
    append and its pause last three times as long as the append."""
    rests = await rests_after((0.01,) * 200, monkeypatch)
    assert rests[:30] == pytest.approx([0] * 30)
    growing = [round(rest, 9) for rest in rests[30:]]
    assert growing == sorted(growing)
    assert rests[-1] == pytest.approx(0.02)


async def test_one_fast_append_shortens_the_pause_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests = await rests_after((*(0.01,) * 200, 0.001, 0.01), monkeypatch)
    assert rests[-2:] == pytest.approx([0.004, 0])


async def test_appends_begin_at_most_flush_s_apart_unless_they_take_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests = await rests_after((*(4.0,) * 500, 7, 9), monkeypatch)
    assert rests[-3:] == pytest.approx([FLUSH_S - 4, FLUSH_S - 7, 0])
