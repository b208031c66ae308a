"""Background runs: claimed from the store, worked on, given back when the server stops.

Every process with a free place takes what is waiting, its own or another's, and what a dead process
left: all runs go through the store, so that none depends on the process that accepted it. It knows
no HTTP and not how a run is prepared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct

from antiphon.errors import RunError
from antiphon.runs.execution.run import ReaderGone, Run
from antiphon.store.records import Claim
from antiphon.store.runs import RunStore

from .event_log_writer import EventLogWriter, LogSink

__all__ = ["BackgroundWorker", "ClaimedRun", "LeaseConfig"]

_log = structlog.get_logger(__name__)


class LeaseConfig(Struct, frozen=True, kw_only=True):
    """How a process shares runs with others. ``lease_s``: how long one that is not heard of keeps
    its runs. ``places``: runs it works on at a time. ``flush_s``: how long events wait to be
    written together."""

    lease_s: float = 5.0
    max_runs: int = 64
    flush_s: float = 0.01


class ClaimedRun(Struct, frozen=True):
    """A run that can be driven, and the outlet for it."""

    run: Run
    sink: LogSink


#: Makes a claim into a run. Raises nothing but ``RunError``, where the store does not answer, and
#: ``Left``, where the run is gone.
Prepare = Callable[[Claim, EventLogWriter], Awaitable[ClaimedRun]]


class BackgroundWorker:
    """``Listener`` of a run store: one a process. Entered, it works until it is drained."""

    def __init__(
        self,
        store: RunStore,
        models: Sequence[str],
        resume: Prepare,
        *,
        owner: str,
        lease: LeaseConfig,
    ) -> None:
        self._store = store
        self._models = models
        self._prepare = resume
        self._lease = lease
        self.owner = owner
        self.log_writer = EventLogWriter(store, flush_s=lease.flush_s)
        self._news = asyncio.Event()
        self._tasks: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._entries: dict[str, LogSink] = {}
        self._loops: tuple[asyncio.Task[None], ...] = ()

    @property
    def running(self) -> int:
        """How many runs are worked on here."""
        return len(self._tasks)

    def start(self) -> None:
        """Claim and work from now on."""
        self._store.set_listener(self)
        self._news.set()
        self._loops = (
            asyncio.create_task(self._claim_on(), name="claims"),
            asyncio.create_task(self._beat_on(), name="beats"),
        )

    async def drain(self, grace_s: float) -> None:
        """Claim nothing more, give what runs ``grace_s`` seconds, and give the rest back: another
        process goes on with it, or this one when it is started again."""
        for loop in self._loops[:1]:
            loop.cancel()
        if self._tasks:
            await asyncio.wait([task for _, task in self._tasks.values()], timeout=grace_s)
        for _, task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait([task for _, task in self._tasks.values()])
        await self.log_writer.wait_until_idle()
        for loop in self._loops:
            loop.cancel()
            with suppress(asyncio.CancelledError):
                await loop
        self._loops = ()
        with suppress(RunError):
            await self._store.release(self.owner)

    # --- Listener --------------------------------------------------------------------------------

    def on_run_queued(self) -> None:
        self._news.set()

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        claim, task = self._tasks.get(response_id, (None, None))
        if claim is None or task is None or claim.epoch >= epoch:
            return
        if (entry := self._entries.get(response_id)) is not None:
            entry.mark_lost()
        task.cancel()

    # --- the loops -------------------------------------------------------------------------------

    async def _claim_on(self) -> None:
        while True:
            self._news.clear()
            free = self._lease.max_runs - len(self._tasks)
            if free > 0:
                try:
                    for claim in await self._store.claim(
                        self.owner, self._models, limit=free, lease_s=self._lease.lease_s
                    ):
                        self._work(claim)
                except RunError as error:
                    _log.warning("runs could not be claimed", error=error.message)
            with suppress(TimeoutError):  # the dead do not say that they died
                async with asyncio.timeout(self._lease.lease_s / 4):
                    await self._news.wait()

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self._lease.lease_s / 4)
            try:
                await self._store.heartbeat(self.owner)
            except RunError as error:
                _log.warning("no sign of life could be given", error=error.message)

    # --- a run -----------------------------------------------------------------------------------

    def _work(self, claim: Claim) -> None:
        name = claim.job.id
        task = asyncio.create_task(self._work_on(claim), name=name)
        self._tasks[name] = (claim, task)

        def ended(_: asyncio.Task[None]) -> None:
            if self._tasks.get(name, (None, None))[1] is task:
                del self._tasks[name]
                self._entries.pop(name, None)
            self._news.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                task.get_loop().call_exception_handler(
                    {"message": "a background run raised", "exception": error, "task": task}
                )

        task.add_done_callback(ended)

    async def _work_on(self, claim: Claim) -> None:
        try:
            ready = await self._prepare(claim, self.log_writer)
            self._entries[claim.job.id] = ready.sink
            await ready.run.drive(ready.sink)
        except ReaderGone:
            _log.info("a run went elsewhere", response=claim.job.id)
        except RunError as error:
            # The store did not answer. The claim lapses, and whoever is alive goes on.
            _log.warning("a run could not be begun", response=claim.job.id, error=error.message)
