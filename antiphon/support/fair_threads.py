"""Threads that tenants share fairly.

``asyncio.to_thread`` runs work in the default executor of the event loop. With asyncio's own
executor, the work of all tenants waits in one queue. ``FairThreads`` lets tenants take turns, and
leaves some threads free of any single tenant. A model that blocks its thread has its own
``TurnThread``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

from antiphon.errors import BackendError

from .fair_limiter import FairLimiter, tenant_share

#: The tenant for whom this task works; "" for the server itself. Tasks inherit it from the task
#: that starts them.
current_tenant: ContextVar[str] = ContextVar("current_tenant", default="")

#: The share of the threads that a tenant may use at a time.
_SHARE = 0.75

_P = ParamSpec("_P")
_T = TypeVar("_T")


class FairThreads(ThreadPoolExecutor):
    """A thread pool with one queue per tenant (``current_tenant`` of the caller of ``submit``). A
    free thread takes the work of the waiting tenant that uses the fewest threads.

    ``count``: number of threads. ``name``: prefix of their names. ``max_per_tenant``: how many of
    them one tenant may use at a time.
    """

    def __init__(self, count: int, name: str, *, max_per_tenant: int | None = None) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._turns = FairLimiter(count, max_per_tenant=max_per_tenant)
        #: Guards ``_turns``, which is not made for threads.
        self._lock = threading.RLock()
        #: Work whose turn it is.
        self._ready: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        tenant, done = current_tenant.get(), Future[_T]()
        task = _Task(done, partial(fn, *args, **kwargs))

        def work() -> None:
            try:
                task.run()
            finally:
                with self._lock:
                    self._turns.release(tenant)

        with self._lock:
            if self._turns.try_acquire(tenant):
                self._ready.append(work)
            else:
                turn = Future[None]()
                turn.add_done_callback(lambda _: self._ready.append(work))
                self._turns.enqueue(tenant, turn)
        super().submit(self._work)
        return done

    def _work(self) -> None:
        """Do the work that is ready. Each piece may make further work ready, perhaps after the
        thread that was started for that work has found nothing to do."""
        while True:
            try:
                work = self._ready.popleft()
            except IndexError:
                return
            work()


class _Task:
    """A call whose result completes a future.

    The traceback of an error refers to the frames of the thread, and through them to this object.
    So the object drops the future and the call when it runs: else the error, with all arguments,
    such as a large body, would stay until the next garbage collection. It also drops them if the
    future is cancelled: the work may wait for its turn long after the memory that its request has
    held is given to others.
    """

    def __init__(self, done: Future[Any], call: Callable[[], Any]) -> None:
        self._parts = [(done, call)]
        done.add_done_callback(self._drop_cancelled)

    def _drop_cancelled(self, done: Future[Any]) -> None:
        if done.cancelled():
            self._parts.clear()

    def run(self) -> None:
        """Complete the future with the result of the call, unless it was cancelled before."""
        try:
            done, call = self._parts.pop()
        except IndexError:
            return
        if not done.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except Exception as error:
            done.set_exception(error)
            del done, call
        except BaseException as error:
            done.set_exception(error)
            raise
        else:
            done.set_result(result)


def default_threads() -> FairThreads:
    """Return the threads for ``asyncio.to_thread``, as many as asyncio would use."""
    count = min(32, (os.cpu_count() or 1) + 4)
    return FairThreads(count, "asyncio", max_per_tenant=tenant_share(count, _SHARE))


class TurnThread:
    """A thread that blocking work of a model runs on, one piece of work at a time. ``name``: prefix
    of the thread's name.

    A model must not make all clients wait for one long request, so its work is divided into pieces
    of a bounded time. Tenants take turns piece by piece, and a cancelled request stops after its
    current piece.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._turns = FairLimiter(1)
        self.closed = False

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Do a piece of work on the thread when it is this tenant's turn.

        The turn ends with the work, also if the caller is cancelled meanwhile. Raises
        ``BackendError`` after ``close``.
        """
        await self._turns.acquire(tenant)
        if self.closed:
            self._turns.release(tenant)
            raise BackendError("The model is closed.")
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(lambda _: self._turns.release(tenant))
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Wait for the current piece of work, and end the thread."""
        self.closed = True
        await asyncio.to_thread(self._thread.shutdown)
