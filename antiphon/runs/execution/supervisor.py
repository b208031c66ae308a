"""The supervisor of runs. When the server stops, the supervisor of foreground runs waits for them
to end. Runs that take too long end as failed, and so do those whose API key was revoked."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.errors import (
    AccessRevoked,
    Overloaded,
    RunError,
    ServerStopped,
    StoreError,
    Unauthorized,
)
from antiphon.support.tasks import BackgroundTasks

#: Seconds between two checks of the access of all clients.
_CHECK_S = 1.0


class Revocable(Protocol):
    """Something that a client has begun and that must not go on without the client's access."""

    def fail(self, error: RunError) -> None:
        """Stop it with this error. Called again if it goes on."""

    async def check_access(self) -> None:
        """Raise ``AccessRevoked`` or ``Unauthorized`` if the client's API key is no longer
        valid."""


class AccessWatch:
    """Stops what clients have begun if they lose their access, within a few seconds. ``open``: what
    has begun and has not ended."""

    def __init__(self) -> None:
        self._tasks = BackgroundTasks("access of clients")
        self.open: set[Revocable] = set()

    def enter(self, begun: Revocable) -> None:
        """Watch something that begins now. The caller removes it from ``open`` when it ends."""
        self.open.add(begun)
        self._tasks.start_once("access", self._watch)

    async def _watch(self) -> None:
        while self.open:
            await asyncio.sleep(_CHECK_S)
            for begun in list(self.open):
                try:
                    await begun.check_access()
                except AccessRevoked as error:
                    begun.fail(error)
                except Unauthorized as error:
                    begun.fail(AccessRevoked(error.message))
                except StoreError:
                    break  # the keys cannot be read now

    async def close(self) -> None:
        """Stop to watch."""
        await self._tasks.close()


class Supervisor:
    """Keeps track of the runs of a server process, so that the server can wait for them before it
    stops, and end those whose client lost its access."""

    def __init__(self) -> None:
        self._watch = AccessWatch()
        #: Watches requests that need not have a run.
        self.requests = AccessWatch()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    @property
    def running(self) -> int:
        """The number of runs that have not ended."""
        return len(self._watch.open)

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

    def enter(self, run: Revocable) -> None:
        """Register a run that starts now."""
        self._idle.clear()
        self._watch.enter(run)

    def leave(self, run: Revocable) -> None:
        """Remove a run that has ended."""
        self._watch.open.discard(run)
        if not self._watch.open:
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
            for run in list(self._watch.open):
                run.fail(ServerStopped("The server was stopped before the response was complete."))
            await self._idle.wait()
        await self.close()

    async def close(self) -> None:
        """Watch the access of clients no longer."""
        await self._watch.close()
        await self.requests.close()
