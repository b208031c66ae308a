"""An event loop with virtual time and a seeded order of ready callbacks.

Time passes only while nothing is ready: then it jumps to the next timer. Work for threads runs
inline. The same seed gives the same order, whatever the addresses of objects are.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

__all__ = ["LoopStuck", "SimulationLoop"]

#: Iterations after which the simulation is stopped: something runs without ever waiting.
_MAX_ITERATIONS = 2_000_000


class _Timer(float):
    """The time of a scheduled callback. Times of this kind are compared without Python code."""

    __slots__ = ("handle",)
    handle: asyncio.TimerHandle


class LoopStuck(Exception):
    """Nothing is ready and no timer is set, or the loop runs forever at the same time."""


class SimulationLoop(asyncio.BaseEventLoop):
    """One loop for all simulated processes. ``shuffles``: ready callbacks run in random order,
    as if each task had its own thread; otherwise in the order of asyncio."""

    def __init__(self, random: Random, *, shuffles: bool) -> None:
        super().__init__()
        self._random = random
        self._shuffles = shuffles
        self._now = 0.0
        self._iterations = 0
        self._task_numbers = itertools.count(1)
        #: A heap, as ``_scheduled`` is in asyncio.
        self._timers: list[_Timer] = []
        #: Called with each new task.
        self.on_task: Callable[[asyncio.Task[Any]], None] = lambda task: None
        #: What callbacks and tasks raised without anybody to catch it.
        self.unhandled: list[dict[str, Any]] = []
        self.set_task_factory(self._new_task)
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        timer = _Timer(when)
        timer.handle = handle
        heapq.heappush(self._timers, timer)
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            failure = error
            self.call_soon(lambda: None if future.done() else future.set_exception(failure))
        else:
            self.call_soon(lambda: None if future.done() else future.set_result(result))
        return future

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
        task._simulation_number = next(self._task_numbers)  # type: ignore[attr-defined]
        if context is None:
            self.on_task(task)
        else:
            context.run(self.on_task, task)
        return task

    def _write_to_self(self) -> None:
        """Do nothing: no thread has to be woken up."""

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""

    def _run_once(self) -> None:
        self._iterations += 1
        if self._iterations > _MAX_ITERATIONS:
            raise LoopStuck("the loop does not come to rest")
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        self._drop_cancelled()
        if not ready:
            if not timers:
                raise LoopStuck("every task waits, and no timer is set")
            self._now = max(self._now, float(timers[0]))
        while timers and timers[0] <= self._now:
            ready.append(heapq.heappop(timers).handle)
            self._drop_cancelled()
        handles = list(ready)
        ready.clear()
        if len(handles) > 1:
            # Callbacks of a set of objects come in the order of their addresses: undo that.
            handles.sort(key=_task_number)
            if self._shuffles:
                self._random.shuffle(handles)
        for handle in handles:
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0].handle._cancelled:  # type: ignore[attr-defined]
            heapq.heappop(self._timers)


def _task_number(handle: Any) -> int:
    owner = getattr(handle._callback, "__self__", None)
    return getattr(owner, "_simulation_number", 0)
