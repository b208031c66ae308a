"""A blocked event loop is logged once, with the place that blocks it."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from typing import Any

from antiphon.logs import open_log
from antiphon.loop_watchdog import LoopWatchdog

#: Seconds after which a test that waits for a stall fails.
_LONG = 20


def block_until(event: threading.Event) -> None:
    """Block the loop, as a slow computation does."""
    assert event.wait(_LONG)


async def first_beat() -> None:
    """Let the loop run once: stalls before that belong to the start."""
    await asyncio.sleep(0)


class Recorder:
    """A log, and an event that is set by the first stall."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.log = open_log(self.stream)
        self.stalled = threading.Event()
        self.count = 0

    def on_stall(self) -> None:
        self.count += 1
        self.stalled.set()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


async def test_blocked_loop_is_logged_once_with_its_stack() -> None:
    seen = Recorder()
    async with LoopWatchdog(0.05, log=seen.log, on_stall=seen.on_stall):
        await first_beat()
        block_until(seen.stalled)
    (line,) = seen.lines()
    assert line["level"] == "warning" and line["event"] == "the event loop is blocked"
    assert line["blocked_ms"] >= 50
    assert "block_until" in line["stack"]
    assert seen.count == 1


async def test_each_stall_is_reported() -> None:
    seen = Recorder()
    async with LoopWatchdog(0.05, log=seen.log, on_stall=seen.on_stall):
        await first_beat()
        for _ in range(2):
            seen.stalled.clear()
            block_until(seen.stalled)
            for _ in range(3):
                await asyncio.sleep(0)  # the heartbeat, which is due, runs
    assert seen.count == 2


async def test_stall_that_the_thread_did_not_see_is_logged_at_its_end() -> None:
    seen = Recorder()
    now = 0.0
    async with LoopWatchdog(_LONG, log=seen.log, on_stall=seen.on_stall, clock=lambda: now):
        await first_beat()
        now = _LONG + 1
    (line,) = seen.lines()
    assert (line["blocked_ms"], line["stack"]) == (1000 * (_LONG + 1), None)


async def test_waiting_loop_is_not_reported() -> None:
    seen = Recorder()
    now = 0.0
    async with LoopWatchdog(1, log=seen.log, on_stall=seen.on_stall, clock=lambda: now):
        await first_beat()
        now = 1
        await asyncio.sleep(0)
    assert seen.lines() == []


async def test_thread_ends_with_the_watchdog() -> None:
    seen = Recorder()
    async with LoopWatchdog(0.01, log=seen.log) as watchdog:
        thread = watchdog._thread
    await asyncio.to_thread(thread.join, _LONG)
    assert not thread.is_alive()


async def test_stall_during_the_start_is_not_reported() -> None:
    seen = Recorder()
    now = 0.0
    async with LoopWatchdog(1, log=seen.log, on_stall=seen.on_stall, clock=lambda: now):
        now = 5
    assert seen.count == 0
