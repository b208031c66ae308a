"""A blocked event loop is logged once, with the place that blocks it."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.support.logs import open_log
from antiphon.support.loop_watchdog import _IDLE_FILES, BLOCKED, STARVED, LoopWatchdog, cpu_wait_s

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

    def watchdog(self, threshold_s: float, clock: Callable[[], float]) -> LoopWatchdog:
        """Return a watchdog with a simulated clock, for which the loop never lacks a processor.

        The real wait for a processor and a simulated clock do not go together: the watchdog
        subtracts one from the other.
        """
        return LoopWatchdog(
            threshold_s, log=self.log, on_stall=self.on_stall, clock=clock, cpu_wait=lambda _: 0.0
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


async def test_blocked_loop_is_logged_once_with_its_stack() -> None:
    recorder = Recorder()
    now = 0.0
    async with recorder.watchdog(0.05, lambda: now):
        await first_beat()
        now = 0.0625
        block_until(recorder.stalled)
    (line,) = recorder.lines()
    assert line["level"] == "warning" and line["event"] == "the event loop is blocked"
    assert line["blocked_ms"] == 62
    assert "block_until" in line["stack"]
    assert recorder.count == 1


async def test_each_stall_is_reported() -> None:
    recorder = Recorder()
    now, loop_thread, beat = 0.0, threading.get_ident(), asyncio.Event()

    def clock() -> float:
        if threading.get_ident() == loop_thread:
            beat.set()
        return now

    async with recorder.watchdog(0.05, clock):
        await first_beat()
        for _ in range(2):
            recorder.stalled.clear()
            now += 1.0
            block_until(recorder.stalled)
            beat.clear()
            await asyncio.wait_for(beat.wait(), _LONG)
    assert recorder.count == 2


async def test_stall_that_the_thread_did_not_see_is_logged_at_its_end() -> None:
    recorder = Recorder()
    now = 0.0
    async with recorder.watchdog(_LONG, lambda: now):
        await first_beat()
        now = _LONG + 1
    (line,) = recorder.lines()
    assert (line["blocked_ms"], line["stack"]) == (1000 * (_LONG + 1), None)


async def test_waiting_loop_is_not_reported() -> None:
    recorder = Recorder()
    now = 0.0
    async with recorder.watchdog(1, lambda: now):
        await first_beat()
        now = 1
        await asyncio.sleep(0)
    assert recorder.lines() == []


async def test_thread_ends_with_the_watchdog() -> None:
    recorder = Recorder()
    before = set(threading.enumerate())
    async with LoopWatchdog(0.01, log=recorder.log):
        (thread,) = set(threading.enumerate()) - before
    await asyncio.to_thread(thread.join, _LONG)
    assert not thread.is_alive()


async def test_stall_during_the_start_is_not_reported() -> None:
    recorder = Recorder()
    now = 0.0
    async with recorder.watchdog(1, lambda: now):
        now = 5
    assert recorder.count == 0


@pytest.mark.parametrize(
    ("waited_s", "event", "blocked_ms"), [(1.5, STARVED, 500), (0.5, BLOCKED, 1500)]
)
async def test_waiting_for_a_processor_is_not_the_code_of_the_loop(
    waited_s: float, event: str, blocked_ms: int
) -> None:
    recorder = Recorder()
    now = waited = 0.0
    async with LoopWatchdog(
        1,
        log=recorder.log,
        on_stall=recorder.on_stall,
        clock=lambda: now,
        cpu_wait=lambda _: waited,
    ):
        await first_beat()
        now, waited = 2.0, waited_s
    (line,) = recorder.lines()
    assert (line["event"], line["blocked_ms"]) == (event, blocked_ms)
    assert line["cpu_wait_ms"] == 1000 * waited_s and line["stack"] is None
    assert recorder.count == 1, "clients are delayed in both cases"


async def test_thread_reports_only_what_the_loop_itself_blocks() -> None:
    recorder = Recorder()
    now, request = 0.0, threading.Semaphore(0)

    def clock() -> float:
        request.release()
        return now

    async with LoopWatchdog(
        0.01, log=recorder.log, on_stall=recorder.on_stall, clock=clock, cpu_wait=lambda _: now
    ):
        await first_beat()
        now = 9.0
        for _ in range(20):
            assert request.acquire(timeout=_LONG)
        assert recorder.count == 0, "the stall has not ended"
    assert [line["event"] for line in recorder.lines()] == [STARVED]


async def test_loop_that_runs_no_callback_is_not_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A quota of processor time stops the loop while it waits for events."""
    seen = Recorder()
    now, asked = 0.0, threading.Semaphore(0)

    def clock() -> float:
        asked.release()
        return now

    def let_time_pass(loop_thread: int) -> None:
        nonlocal now
        while sys._current_frames()[loop_thread].f_code.co_filename not in _IDLE_FILES:
            assert asked.acquire(timeout=_LONG)
        now = 9.0
        for _ in range(20):
            assert asked.acquire(timeout=_LONG)

    loop = asyncio.get_running_loop()
    later = loop.call_later  # no second heartbeat: the loop waits in its selector
    monkeypatch.setattr(loop, "call_later", lambda _, *arguments: later(_LONG, *arguments))
    async with LoopWatchdog(0.01, log=seen.log, on_stall=seen.on_stall, clock=clock):
        await first_beat()
        await asyncio.to_thread(let_time_pass, threading.get_ident())
        assert seen.count == 0
    assert [line["event"] for line in seen.lines()] == [STARVED]


async def test_missing_processor_is_logged_at_most_every_ten_minutes() -> None:
    seen = Recorder()
    now = 0.0
    async with LoopWatchdog(
        1, log=seen.log, on_stall=seen.on_stall, clock=lambda: now, cpu_wait=lambda _: now
    ) as watchdog:
        await first_beat()
        for moment in (2.0, 4.0, 601.0, 603.0):
            now = moment
            watchdog.beat()
        assert seen.count == 4
    assert [line["cpu_wait_ms"] for line in seen.lines()] == [2000, 2000]


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_wait_for_a_processor_is_read_for_each_thread() -> None:
    begun = time.monotonic()
    before = cpu_wait_s(threading.get_native_id())
    after = cpu_wait_s(threading.get_native_id())
    assert 0 <= after - before <= time.monotonic() - begun + 1e-3
    assert cpu_wait_s(2**30) == 0, "no such thread"
