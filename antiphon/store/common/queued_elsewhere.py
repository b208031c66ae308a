"""Runs that other processes queued and that nobody has claimed yet.

The process that queues a run claims it at once if it has room. Each other process waits for a
random time, and claims only runs that are still unclaimed. So a run wakes one process after the
other, not all of them at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

__all__ = ["QueuedElsewhere"]

#: Seconds after which a process claims what others have queued: at least, and at most.
_MIN_WAIT_S, _MAX_WAIT_S = 0.1, 0.5


class QueuedElsewhere:
    """The queued runs that one process knows of. ``claim`` is called when it should claim."""

    def __init__(self, claim: Callable[[], None]) -> None:
        self._claim = claim
        self._run_ids: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, run_ids: Iterable[str]) -> None:
        """Add runs that were queued."""
        self._run_ids.update(run_ids)
        if self._run_ids and self._timer is None:
            wait_s = random.uniform(_MIN_WAIT_S, _MAX_WAIT_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._on_timeout)

    def remove(self, run_ids: Iterable[str]) -> None:
        """Remove runs that were claimed."""
        self._run_ids.difference_update(run_ids)
        if not self._run_ids:
            self.close()

    def close(self) -> None:
        """Claim nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        self._run_ids.clear()
        self._claim()
