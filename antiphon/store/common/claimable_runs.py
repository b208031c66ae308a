"""Runs that other processes have queued and that no process has claimed yet.

A process that queues a run claims the run immediately if it has room for another run. Each other
process waits for a random time, and then claims only runs that are still unclaimed. So the
processes do not all try to claim a queued run at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

#: Shortest and longest wait, in seconds, before a process claims runs that others have queued.
_MIN_WAIT_S, _MAX_WAIT_S = 0.1, 0.5


class ClaimableRuns:
    """The runs that other processes have queued. This process knows them from notifications.
    ``claim``: called when this process should try to claim runs."""

    def __init__(self, claim: Callable[[], None]) -> None:
        self._claim = claim
        self._run_ids: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run_ids: Iterable[str]) -> None:
        """Add the ids of runs that other processes have queued."""
        self._run_ids.update(run_ids)
        if self._run_ids and self._timer is None:
            wait_s = random.uniform(_MIN_WAIT_S, _MAX_WAIT_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timeout)

    def remove(self, run_ids: Iterable[str]) -> None:
        """Remove the ids of runs that a process has claimed."""
        self._run_ids.difference_update(run_ids)
        if not self._run_ids:
            self.close()

    def close(self) -> None:
        """Stop the timer that calls the function ``claim``. The function is not called again until
        more runs are added."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        self._run_ids.clear()
        self._claim()
