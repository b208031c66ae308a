"""The notices by which processes tell each other that runs have changed, and the runs that other
processes have queued and that no process has claimed yet.

A process that queues a run claims the run immediately if it has room for another run. Each other
process waits for a random time, and then claims only runs that are still unclaimed. So the
processes do not all try to claim a queued run at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from msgspec import Struct, field

#: Shortest and longest wait, in seconds, before a process claims runs that others have queued.
_MIN_WAIT_S, _MAX_WAIT_S = 0.1, 0.5


#: Stands for runs whose ids are not known.
_UNKNOWN = ""


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to all processes about the runs that a transaction changed.

    - ``sender``: the process that sends the notice, if it may receive its own notices.
    - ``ended_runs``: the tenants and ids of runs that ended or were deleted.
    - ``lost_runs``: runs that another owner has taken over, each with its new epoch.
    - ``queued_runs``: new runs that can be claimed.
    - ``claimed_runs``: runs that were claimed.
    - ``has_released_runs``: whether the sending process stops and has released its runs. Other
      processes can then claim these runs.
    - ``all``: whether any run may have changed, because the details did not fit.

    The names of the fields are short in the JSON text, because PostgreSQL limits its length.
    """

    sender: str = field(default="", name="by")
    ended_runs: tuple[tuple[str, str], ...] = field(default=(), name="ended")
    lost_runs: tuple[tuple[str, int], ...] = field(default=(), name="lost")
    queued_runs: tuple[str, ...] = field(default=(), name="queued")
    claimed_runs: tuple[str, ...] = field(default=(), name="claimed")
    has_released_runs: bool = field(default=False, name="released")
    all: bool = False


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

    def on_notice(self, notice: Notice, *, can_claim: bool) -> None:
        """Take note of what another process has done. ``can_claim``: whether this process claims
        runs."""
        self.remove(notice.claimed_runs)
        if can_claim:
            self.add(notice.queued_runs)
            if notice.has_released_runs or notice.all:
                self.add((_UNKNOWN,))

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
