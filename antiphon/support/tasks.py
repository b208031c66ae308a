"""Tasks and their owners.

A task that nobody holds can be collected before it ends, its failure shows only when it is
collected, and a task that outlives its owner uses things that are closed. Therefore each task has
an owner:

- a block: ``running`` starts a task that ends with the block at the latest, and ``run_together``
  starts several;
- an object: ``BackgroundTasks`` holds tasks that outlive the call that started them. The object
  closes them when it is closed itself.

Three rules hold for both. An owner that ends cancels its tasks and waits until they have ended. A
failure is raised where the task is awaited; if nobody awaits the task, the failure goes to the
exception handler of the event loop, which logs it. Nothing in this module suppresses the
cancellation of its caller.

Work that repeats is a coroutine, which needs a task like any other: ``repeat`` runs work at
intervals and continues after errors, ``repeat_until_done`` stops when the work is done, and
``retry`` runs an operation until it succeeds.

Code that creates tasks itself gives the reason in a comment. The usual reason is the time that a
run in the foreground takes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import structlog

from antiphon.errors import AntiphonError
from antiphon.support.log import Log

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


async def do_nothing() -> None:
    """Do nothing. The value of a callback that has no work to do."""


class BackgroundTasks:
    """The background tasks of one object. ``name``: the name of the tasks, for debuggers.

    Tasks can have keys. At most one task with the same key runs at a time.
    """

    __slots__ = ("_keyed", "_name", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keyed: dict[Hashable, asyncio.Task[Any]] = {}

    def __len__(self) -> int:
        """The number of running tasks."""
        return len(self._tasks)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a task with this key runs."""
        return self.get(key) is not None

    @property
    def tasks(self) -> tuple[asyncio.Task[Any], ...]:
        """The running tasks."""
        return tuple(self._tasks)

    def get(self, key: Hashable) -> asyncio.Task[Any] | None:
        """Return the running task with this key, or None."""
        task = self._keyed.get(key)
        return None if task is None or task.done() else task

    def start(
        self,
        work: Coroutine[Any, Any, _T],
        *,
        key: Hashable | None = None,
        is_awaited: bool = False,
    ) -> asyncio.Task[_T]:
        """Start a task.

        ``key``: the key of the task, which no running task may have. ``is_awaited``: whether the
        caller awaits the task, and so gets its failure. Otherwise, a failure is reported to the
        exception handler of the event loop.
        """
        assert key is None or key not in self, f"a task with the key {key!r} is running"
        task = asyncio.create_task(work, name=self._name)
        self._tasks.add(task)
        if key is not None:
            self._keyed[key] = task
        task.add_done_callback(partial(self._on_done, key))
        if not is_awaited:
            task.add_done_callback(_report_failure)
        return task

    def start_once(
        self, key: Hashable, work: Callable[[], Coroutine[Any, Any, _T]]
    ) -> asyncio.Task[_T]:
        """Start a task, unless a task with this key is running. Return the running task."""
        return self.get(key) or self.start(work(), key=key)

    async def finish(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` to its end, even if the caller is cancelled, and return its result. If the
        caller is cancelled, a failure of ``work`` is reported to the exception handler of the event
        loop."""
        task = self.start(work, is_awaited=True)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report_failure)
            raise

    def cancel(self, key: Hashable) -> None:
        """Cancel the task with this key, if it runs. A new task may then get the key."""
        task = self._keyed.pop(key, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks, and do not wait for their end."""
        for task in self._tasks:
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until no task runs, but at most ``timeout_s`` seconds. Returns whether that is
        so."""
        loop = asyncio.get_running_loop()
        end = math.inf if timeout_s is None else loop.time() + timeout_s
        while self._tasks:
            left_s = None if timeout_s is None else end - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            await asyncio.wait(self._tasks, timeout=left_s)
        return True

    async def close(self, grace_s: float = 0.0) -> None:
        """Cancel all tasks, and wait until they have ended. Before that, wait up to ``grace_s``
        seconds for tasks that end by themselves."""
        if grace_s and await self.wait(grace_s):
            return
        while self._tasks:  # a task that ends may start another one
            self.cancel_all()
            await asyncio.wait(self._tasks)

    def _on_done(self, key: Hashable | None, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if key is not None and self._keyed.get(key) is task:
            del self._keyed[key]


def _report_failure(task: asyncio.Task[Any]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    message = f"a background task failed: {task.get_name()}"
    task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


@asynccontextmanager
async def running(work: Coroutine[Any, Any, _T]) -> AsyncIterator[asyncio.Task[_T]]:
    """Context manager that runs ``work`` in a task and yields the task. At the end of the block, a
    task that still runs is cancelled, and the block waits until it has ended.

    The block awaits the task to get its result or its failure. A failure that nobody reads is
    logged by asyncio.
    """
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def run_together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run several coroutines concurrently. If one of them fails, cancel the others, and raise its
    failure itself. (``asyncio.TaskGroup`` raises an exception group.)"""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def repeat(
    work: Callable[[], Awaitable[object]],
    interval_s: float,
    *,
    failure: str,
    is_first_delayed: bool = False,
    log: Log = _log,
) -> None:
    """Run ``work`` again and again until the caller is cancelled, with a pause of ``interval_s``
    seconds between the end of a run and the start of the next.

    ``is_first_delayed``: whether the first run comes after a pause, too. ``failure``: the log
    message for a run that fails. The log also says how many runs in a row have failed. ``log``: the
    logger.
    """

    async def work_forever() -> bool:
        await work()
        return False

    await repeat_until_done(
        work_forever, interval_s, failure=failure, is_first_delayed=is_first_delayed, log=log
    )


async def repeat_until_done(
    work: Callable[[], Awaitable[bool]],
    interval_s: float,
    *,
    failure: str,
    is_first_delayed: bool = False,
    log: Log = _log,
) -> None:
    """Run ``work`` again and again until it returns True. A run that fails is logged and counts as
    not done. For the arguments, see ``repeat``."""
    failures = 0
    if is_first_delayed:
        await asyncio.sleep(interval_s)
    while True:
        try:
            if await work():
                return
            failures = 0
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            failures += 1  # something that the work awaited was cancelled, not this task
            _log_failure(log, failure, error, failures)
        except Exception as error:
            failures += 1
            _log_failure(log, failure, error, failures)
        await asyncio.sleep(interval_s)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _log_failure(log: Log, message: str, error: BaseException, failures: int) -> None:
    """Log a failure. The errors of this package explain themselves; others get a traceback."""
    if isinstance(error, AntiphonError):
        log.warning(message, error=str(error), failures=failures)
    else:
        log.error(message, exc_info=error, failures=failures)


class Backoff:
    """Pauses between attempts. Each pause is twice as long as the last one. ``first_s``,
    ``longest_s``: the first and the longest pause, in seconds."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    @property
    def next_s(self) -> float:
        """The length of the next pause, in seconds."""
        return self._next_s

    def reset(self) -> None:
        """Begin again with the first pause, because an attempt has succeeded."""
        self._next_s = self._first_s

    def take(self) -> float:
        """Return the length of the next pause, and double the pause after it."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s

    async def pause(self) -> None:
        """Wait for the next pause."""
        await asyncio.sleep(self.take())


async def retry(
    operation: Callable[[], Awaitable[_T]],
    errors: type[Exception] | tuple[type[Exception], ...],
    backoff: Backoff,
    *,
    failure: str,
    limit_s: float | None = None,
) -> _T:
    """Run ``operation`` until it raises none of ``errors``, and return its result.

    ``backoff``: the pauses between the attempts. ``failure``: the log message for a failed attempt.
    ``limit_s``: seconds after which the error is raised instead of a new attempt; None means no
    limit.
    """
    loop = asyncio.get_running_loop()
    end = math.inf if limit_s is None else loop.time() + limit_s
    while True:
        try:
            return await operation()
        except errors as error:
            if loop.time() + backoff.next_s > end:
                raise
            _log.warning(failure, error=str(error), retry_s=backoff.next_s)
            await backoff.pause()
