"""An event loop with virtual time and a seeded order of ready callbacks.

Time passes only while nothing is ready: then it jumps to the next timer. Work for threads runs
inline. The same seed gives the same order, whatever the addresses of objects are.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

#: Iterations after which the simulation is stopped: something runs without ever waiting.
_MAX_ITERATIONS = 2_000_000


class _Handle:
    """A callback that is ready. asyncio's own handles cost half of a simulation."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., Any], args: Any, context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        """Prevent the call."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether the call was prevented."""
        return self.is_cancelled

    def when(self) -> float:
        """The time of a timer: no caller asks."""
        raise NotImplementedError


class _Timer(float):
    """The time of a scheduled callback. Times of this kind are compared without Python code."""

    __slots__ = ("handle",)
    handle: _Handle


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
        self.iterations = 0
        self._task_numbers = itertools.count(1)
        self._ready: deque[_Handle] = deque()
        #: A heap, as ``_scheduled`` is in asyncio.
        self._timers: list[_Timer] = []
        #: All tasks. ``asyncio.all_tasks`` also looks through those of other loops.
        self.tasks: list[asyncio.Task[Any]] = []
        #: Called once, after so many iterations from the start.
        self.strike_at: int | None = None
        self.on_strike: Callable[[], None] = lambda: None
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
        timer = _Timer(when)
        timer.handle = handle = _Handle(callback, args, context)
        heapq.heappush(self._timers, timer)
        return handle  # type: ignore[return-value]

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context)
        self._ready.append(handle)
        return handle  # type: ignore[return-value]

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
        task.simulation_number = next(self._task_numbers)  # type: ignore[attr-defined]
        self.tasks.append(task)
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
        self.iterations += 1
        if self.iterations > _MAX_ITERATIONS:
            raise LoopStuck("the loop does not come to rest")
        if self.iterations == self.strike_at:
            self.on_strike()
        ready = self._ready
        timers = self._timers
        self._drop_cancelled()
        if not ready:
            if not timers:
                raise LoopStuck("every task waits, and no timer is set")
            self._now = max(self._now, float(timers[0]))
        while timers and timers[0] <= self._now:
            ready.append(heapq.heappop(timers).handle)
            self._drop_cancelled()
        if len(ready) == 1:
            return self._call(ready.popleft())
        handles = list(ready)
        ready.clear()
        # Callbacks of a set of objects come in the order of their addresses: undo that.
        handles.sort(key=_task_number)
        if self._shuffles:
            self._random.shuffle(handles)
        for handle in handles:
            self._call(handle)

    def _call(self, handle: _Handle) -> None:
        if not handle.is_cancelled:
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:
                self.unhandled.append({"message": repr(handle.callback), "exception": error})

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0].handle.is_cancelled:
            heapq.heappop(self._timers)


def _task_number(handle: Any) -> int:
    owner = getattr(handle.callback, "__self__", None)
    return getattr(owner, "simulation_number", 0)
