"""A thread that blocking work of all tenants shares, one piece of work at a time.

A model that blocks its thread must not make all clients wait for one long request, so its work is
divided into pieces of a bounded time. Tenants take turns piece by piece, and a cancelled request
stops after its current piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from antiphon.errors import BackendError

from .fair_limiter import FairLimiter

_T = TypeVar("_T")


class TurnThread:
    """Runs blocking work of a model. ``name``: prefix of the thread's name."""

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
