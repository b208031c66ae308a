"""Watch an event loop. If a call blocks the loop, log the stall and its stack.

A blocked loop delays every client. The loop runs a heartbeat, and a thread checks the age of the
last heartbeat.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.runners
import os
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable

from antiphon.support.log import Log

#: Log messages: a call blocks the loop, or the machine has no free processor for the loop.
BLOCKED = "the event loop is blocked"
STARVED = "the event loop had to wait for a processor"

#: Heartbeats in the time of the shortest stall that is reported. With four, an idle server took
#: 9 ms of CPU time a second on a virtual machine, where waking a thread is expensive; with two, 5.
_BEATS = 2
#: Innermost frames of a logged stack.
_MAX_FRAMES = 25
#: Seconds between two log lines about a missing processor. If a model keeps all cores busy, such
#: stalls are frequent, and one line is enough. The metric counts all stalls.
_STARVED_LOG_S = 600.0
#: Where the loop's thread is while it runs no callback: uvloop has no Python frames of its own.
_IDLE_FILES = frozenset(
    module.__file__ for module in (asyncio.base_events, asyncio.runners, selectors)
)


def cpu_wait_s(thread_id: int) -> float:
    """Return how many seconds a thread of this process has waited for a processor in total: it was
    ready to run, but all processors were busy. ``thread_id``: the thread's native id.

    The value comes from ``schedstat`` of Linux, where it is the second number. Returns 0 on other
    systems.
    """
    try:
        file = os.open(f"/proc/self/task/{thread_id}/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 100).split()[1]) / 1e9
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0.0


class LoopWatchdog:
    """Logs stalls of the running event loop. An async context manager.

    A stall is a time longer than ``threshold_s`` in which the loop cannot run its next callback.
    There are three kinds:

    - Code blocks the loop. The stall is logged while it lasts, with the stack of the loop's thread
      but without local variables. If the code holds the GIL, it blocks the watching thread too.
      Then the stall is logged when it ends.
    - The loop's thread has to wait for a processor. The stall is logged when it ends.
    - The CPU quota of a container stops all threads. Linux does not count this time as waiting for
      a processor. If the loop's thread runs no callback after the pause, the watching thread
      concludes that no code has blocked the loop. The stall is logged when it ends.

    Stalls of the last two kinds have a different log message and are logged at most every ten
    minutes.

    A heartbeat only reads the clock. The watching thread measures the wait for a processor, so the
    wait before a stall is known to a half of ``threshold_s``.

    ``on_stall``: called once per stall, on the watching thread or on the loop. ``cpu_wait``:
    replaces ``cpu_wait_s``, which measures how long the loop's thread has waited for a processor.
    """

    def __init__(
        self,
        threshold_s: float,
        *,
        log: Log,
        on_stall: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        cpu_wait: Callable[[int], float] = cpu_wait_s,
    ) -> None:
        self._threshold_s = threshold_s
        self._interval_s = threshold_s / _BEATS
        self._log = log
        self._on_stall = on_stall
        self._clock = clock
        self._cpu_wait = cpu_wait
        self._lock = threading.Lock()
        #: Held until the end. Waiting for a lock takes fewer steps than for a ``threading.Event``.
        self._running = threading.Lock()
        self._running.acquire()
        #: Time of the last heartbeat. None until the loop first runs, because the startup may block
        #: it.
        self._last_beat: float | None = None
        #: The loop's wait for a processor: the last measurement, and the one before the heartbeat.
        self._waited_s = self._waited_before_s = 0.0
        self._is_reported = self._was_idle = False
        self._starved_logged: float | None = None
        self._loop_thread = self._native_thread = 0
        self._timer: asyncio.Handle | None = None
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    async def __aenter__(self) -> LoopWatchdog:
        self._loop_thread = threading.get_ident()
        self._native_thread = threading.get_native_id()
        self._waited_s = self._cpu_wait(self._native_thread)
        self._timer = asyncio.get_running_loop().call_soon(self._on_timer)
        self._thread.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.beat()
        self._running.release()
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self.beat()
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._on_timer)

    def beat(self) -> None:
        """Record that the loop runs. A long stall may have ended without a report from the watching
        thread, for example because that thread was blocked too. Report such a stall now."""
        now, last = self._clock(), self._last_beat
        if last is not None and now - last > self._threshold_s:
            self._report(stack=None, ended=True)
        with self._lock:
            self._last_beat, self._is_reported, self._was_idle = now, False, False
            self._waited_before_s = self._waited_s

    def _watch(self) -> None:
        while not self._running.acquire(timeout=self._interval_s):
            age_s, waited_s = self._age_s()
            if age_s - waited_s > self._threshold_s:
                frame = sys._current_frames().get(self._loop_thread)
                if frame is not None and frame.f_code.co_filename in _IDLE_FILES:
                    self._was_idle = True
                else:
                    self._report(traceback.format_stack(frame, _MAX_FRAMES) if frame else None)

    def _age_s(self) -> tuple[float, float]:
        """Return the seconds since the last heartbeat, and the part of this time in which the
        loop's thread waited for a processor."""
        with self._lock:
            self._waited_s = self._cpu_wait(self._native_thread)
            if self._last_beat is None:
                return 0.0, 0.0
            return self._clock() - self._last_beat, self._waited_s - self._waited_before_s

    def _report(self, stack: list[str] | None, *, ended: bool = False) -> None:
        """Report the current stall of the loop, unless it was already reported.

        ``stack``: the stack of the loop's thread; None if unknown. ``ended``: whether the stall is
        over. If code blocks the loop, the stall is reported at once. If the loop only waits for a
        processor, the stall is reported when it is over.
        """
        age_s, waited_s = self._age_s()
        is_blocked = age_s - waited_s > self._threshold_s and not self._was_idle
        with self._lock:
            if self._is_reported or not (is_blocked or (ended and age_s > self._threshold_s)):
                return
            self._is_reported = True
        self._on_stall()
        if not (is_blocked or self._may_log_starved()):
            return
        self._log.warning(
            BLOCKED if is_blocked else STARVED,
            blocked_ms=max(0, round((age_s - waited_s) * 1000)),
            cpu_wait_ms=round(waited_s * 1000),
            stack="".join(stack) if stack else None,
        )

    def _may_log_starved(self) -> bool:
        now, last = self._clock(), self._starved_logged
        if last is not None and now - last < _STARVED_LOG_S:
            return False
        self._starved_logged = now
        return True
