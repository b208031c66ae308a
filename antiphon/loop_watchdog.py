"""Watch an event loop: log when something blocks it, and where.

A blocked loop delays every client. The loop runs a heartbeat; a thread looks at its age.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["LoopWatchdog"]

#: Heartbeats in the time of the shortest stall that is reported.
_BEATS = 4
#: Innermost frames of a logged stack.
_MAX_FRAMES = 25


class LoopWatchdog:
    """Reports stalls of the running event loop while it is entered: ``async with``.

    A stall is a time longer than ``threshold_s`` in which the loop ran nothing else. It is logged
    while it lasts, with the stack of the loop's thread and without local variables. Code that does
    not release the GIL also blocks the watching thread: such a stall is logged at its end.
    ``on_stall`` is called once per stall, on the watching thread or on the loop.
    """

    def __init__(
        self,
        threshold_s: float,
        *,
        log: Any,
        on_stall: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threshold_s = threshold_s
        self._interval_s = threshold_s / _BEATS
        self._log = log
        self._on_stall = on_stall
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        #: None until the loop runs after the start, which may block it.
        self._last_beat: float | None = None
        self._is_reported = False
        self._loop_thread = 0
        self._timer: asyncio.Handle | None = None
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)

    async def __aenter__(self) -> LoopWatchdog:
        self._loop_thread = threading.get_ident()
        self._timer = asyncio.get_running_loop().call_soon(self._on_timer)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beat()
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._beat()
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._on_timer)

    def _beat(self) -> None:
        """Note that the loop runs. Reports a stall that the thread could not see."""
        self._report(stack=None)
        with self._lock:
            self._last_beat, self._is_reported = self._clock(), False

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval_s):
            if self._age_s() > self._threshold_s:
                frame = sys._current_frames().get(self._loop_thread)
                self._report(traceback.format_stack(frame, _MAX_FRAMES) if frame else None)

    def _age_s(self) -> float:
        with self._lock:
            return 0.0 if self._last_beat is None else self._clock() - self._last_beat

    def _report(self, stack: list[str] | None) -> None:
        """Log a stall once."""
        blocked_s = self._age_s()
        with self._lock:
            if self._is_reported or blocked_s <= self._threshold_s:
                return
            self._is_reported = True
        self._on_stall()
        self._log.warning(
            "the event loop is blocked",
            blocked_ms=round(blocked_s * 1000),
            stack="".join(stack) if stack else None,
        )
