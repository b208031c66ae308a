"""The supervisor of foreground runs. When the server stops, the supervisor waits for the runs to
end. Runs that take too long end as failed."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.errors import Overloaded, RunError, ServerStopped

__all__ = ["StoppableRun", "Supervisor"]


class StoppableRun(Protocol):
    """The methods of a run that the supervisor calls."""

    def fail(self, error: RunError) -> None:
        """Stop the run, which then ends ``failed`` with this error."""


class Supervisor:
    """Keeps track of the foreground runs of a server process, so that the server can wait for them
    before it stops. One instance per process."""

    def __init__(self) -> None:
        self._runs: set[StoppableRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def running(self) -> int:
        """The number of runs that have not ended."""
        return len(self._runs)

    @property
    def is_stopping(self) -> bool:
        """Whether the server is stopping and accepts no new run."""
        return self._stopping

    def admit(self) -> None:
        """Raise ``Overloaded`` if the server is stopping."""
        if self._stopping:
            raise Overloaded(
                "The server is shutting down. Please try again in 5s.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )

    def enter(self, run: StoppableRun) -> None:
        """Register a run that starts now."""
        self._runs.add(run)
        self._idle.clear()

    def leave(self, run: StoppableRun) -> None:
        """Remove a run that has ended."""
        self._runs.discard(run)
        if not self._runs:
            self._idle.set()

    def stop(self) -> None:
        """Accept no new run from now on."""
        self._stopping = True

    async def drain(self, grace_s: float) -> None:
        """Accept no new run, and wait up to ``grace_s`` seconds until all runs have ended. Then
        call ``fail`` of the remaining runs, and wait until they have ended too."""
        self.stop()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            for run in list(self._runs):
                run.fail(ServerStopped("The server was stopped before the response was complete."))
            await self._idle.wait()
