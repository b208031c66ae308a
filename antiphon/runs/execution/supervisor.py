"""The supervisor of runs. When the server stops, the supervisor of foreground runs waits for them
to end. Runs that take too long end as failed, and so do those whose API key was revoked."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.errors import AccessRevoked, Overloaded, RunError, ServerStopped, StoreError
from antiphon.support.tasks import BackgroundTasks

#: Seconds between two checks of the access of all clients.
_CHECK_S = 1.0


class StoppableRun(Protocol):
    """The methods of a run that the supervisor calls."""

    def fail(self, error: RunError) -> None:
        """Stop the run, which then ends ``failed`` with this error."""

    async def check_access(self) -> None:
        """Raise ``AccessRevoked`` if the client's API key is no longer valid."""


class Supervisor:
    """Keeps track of the runs of a server process, so that the server can wait for them before it
    stops, and end those whose client lost its access."""

    def __init__(self) -> None:
        self._watch = BackgroundTasks("access of runs")
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
        self._watch.start_once("access", self._watch_access)

    def leave(self, run: StoppableRun) -> None:
        """Remove a run that has ended."""
        self._runs.discard(run)
        if not self._runs:
            self._idle.set()

    async def _watch_access(self) -> None:
        """End the runs whose client has lost its access, until no run is left."""
        while self._runs:
            await asyncio.sleep(_CHECK_S)
            for run in list(self._runs):
                try:
                    await run.check_access()
                except AccessRevoked as error:
                    run.fail(error)
                except StoreError:
                    break  # the keys cannot be read now

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
        await self._watch.close()
