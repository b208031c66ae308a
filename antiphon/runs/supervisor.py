"""The supervisor: starts runs, knows those that still run, and ends them when the server stops."""

from __future__ import annotations

import asyncio

from antiphon.errors import Overloaded, RunError

from .run import Run

__all__ = ["Supervisor"]


class Supervisor:
    """One a server process."""

    def __init__(self) -> None:
        self._runs: dict[asyncio.Task[None], Run] = {}
        self._stopping = False

    @property
    def running(self) -> int:
        """How many runs have not ended."""
        return len(self._runs)

    @property
    def stopping(self) -> bool:
        """No run is started any more."""
        return self._stopping

    def start(self, run: Run) -> None:
        """Let a run begin. Raises ``Overloaded`` when the server is about to stop."""
        if self._stopping:
            raise Overloaded(
                "The server is shutting down. Please retry in a few seconds.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )
        task = run.start()
        self._runs[task] = run
        task.add_done_callback(self._ended)

    async def drain(self, grace_s: float) -> None:
        """Start nothing more; give what runs ``grace_s`` seconds, then have it end ``failed``."""
        self._stopping = True
        if self._runs:
            await asyncio.wait(self._runs, timeout=grace_s)
        for run in list(self._runs.values()):
            run.fail(RunError("The server was stopped before the response was complete."))
        if self._runs:
            await asyncio.wait(self._runs)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._runs[task]
        if not task.cancelled() and task.exception() is not None:
            # Only with ``reraise``: a test that wants to see it.
            task.get_loop().call_exception_handler(
                {"message": "a run raised", "exception": task.exception(), "task": task}
            )
