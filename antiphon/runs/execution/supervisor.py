"""The supervisor: knows the runs that readers drive, and ends them when the server stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from antiphon.errors import Overloaded, RunError

if TYPE_CHECKING:
    from .run import Run

__all__ = ["Supervisor"]


class Supervisor:
    """One a server process."""

    def __init__(self) -> None:
        self._runs: set[Run] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def running(self) -> int:
        """How many runs have not ended."""
        return len(self._runs)

    @property
    def stopping(self) -> bool:
        """No run is started any more."""
        return self._stopping

    def admit(self) -> None:
        """Raises ``Overloaded`` when the server is about to stop."""
        if self._stopping:
            raise Overloaded(
                "The server is shutting down. Please retry in a few seconds.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )

    def enter(self, run: Run) -> None:
        """The run is driven from now on."""
        self._runs.add(run)
        self._idle.clear()

    def leave(self, run: Run) -> None:
        """The run has ended."""
        self._runs.discard(run)
        if not self._runs:
            self._idle.set()

    def stop(self) -> None:
        """Start nothing more."""
        self._stopping = True

    async def drain(self, grace_s: float) -> None:
        """Start nothing more; give what runs ``grace_s`` seconds, then have it end ``failed``."""
        self.stop()
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            for run in list(self._runs):
                run.fail(RunError("The server was stopped before the response was complete."))
            await self._idle.wait()
