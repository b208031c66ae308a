"""The worker for background runs. It claims runs from the store, executes them, and releases them
when the server stops.

A server with free capacity claims queued runs, no matter which server accepted them. It also claims
the runs of a server that has stopped. All runs go through the store, so no run depends on the
process that accepted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
from msgspec import Struct

from antiphon.errors import StoreError
from antiphon.runs.execution.run import Interrupted, ReaderGone, Run
from antiphon.store.records import Claim, ClaimQuery
from antiphon.store.runs import RunStore
from antiphon.support.tasks import BackgroundTasks, repeat
from antiphon.tracing.base import Span
from antiphon.tracing.responses import record_response
from antiphon.wire.response import Response

from .event_log_writer import EventLogWriter, LogSink, retry_until_available

_log = structlog.get_logger(__name__)


class LeaseConfig(Struct, frozen=True, kw_only=True):
    """How a server shares background runs with other servers.

    ``lease_s``: if the server sends no heartbeat for this many seconds, it loses its runs.
    ``max_runs``: maximum number of runs that the server executes at a time.
    ``max_runs_per_tenant``: how many of these runs may belong to one tenant; None means no limit
    per tenant.

    The server appends new events to the store at intervals. ``flush_s``: the longest interval in
    seconds, from the start of an append to the start of the next. If an append takes longer, the
    next append starts right after it.
    """

    lease_s: float = 5.0
    max_runs: int = 64
    max_runs_per_tenant: int | None = None
    flush_s: float = 0.02


class ClaimedRun(Struct, frozen=True):
    """A background run that this server has claimed and that is ready for ``Run.drive``. ``sink``:
    receives the events of the run and stores them. ``span``: the trace span of the run, which ends
    with the run."""

    run: Run
    sink: LogSink
    span: Span


#: Called with each response that ended in this process.
OnEnd = Callable[[Response], None]


def ignore_end(response: Response) -> None:
    """Do nothing. The default ``OnEnd`` callback."""


#: Creates the run of a claim. Raises only ``StoreError``, if the store does not answer,
#: ``ReaderGone``, if the run was deleted, and ``EngineLost``, if the run is to be claimed again.
ResumeClaim = Callable[[Claim, EventLogWriter], Awaitable[ClaimedRun]]


class BackgroundWorker:
    """Claims and executes the background runs of a store between ``start`` and ``drain``. One
    instance per process. It is also the store's ``RunListener``: the store notifies it of queued
    runs, and of runs that another server has taken over.

    ``models``: returns the names of the models that this process serves. Only runs of these models
    are claimed. ``resume``: creates the ``Run`` object for a background run that this process has
    claimed. ``owner``: the name of this server in the store. ``clock``: returns Unix seconds.
    ``on_end``: called with each response that ended in this process. ``name``: the id of the only
    run that is claimed; None means the runs in the queue. A worker for one run is not the store's
    listener.
    """

    def __init__(
        self,
        store: RunStore,
        models: Callable[[], Sequence[str]],
        resume: ResumeClaim,
        *,
        owner: str,
        lease: LeaseConfig,
        clock: Callable[[], float],
        on_end: OnEnd = ignore_end,
        name: str | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._models = models
        self._resume = resume
        self._lease = lease
        #: Seconds between two heartbeats, and before a run that was interrupted is claimed again.
        self._pause_s = lease.lease_s / 4
        self._clock = clock
        self._on_end = on_end
        self.owner = owner
        self.log_writer = EventLogWriter(store, flush_s=lease.flush_s)
        self._wake_up = asyncio.Event()
        #: Whether there may be queued runs that the last claim did not include.
        self._has_more = True
        #: The claimed runs by their ids. After a takeover, the task of an earlier claim of the same
        #: run may still be ending.
        self._runs: dict[str, tuple[Claim, asyncio.Task[None]]] = {}
        self._claimed: dict[str, ClaimedRun] = {}
        self._run_tasks = BackgroundTasks("background run")
        self._claiming = BackgroundTasks("claims")
        self._heartbeats = BackgroundTasks("heartbeats")

    @property
    def running(self) -> int:
        """The number of background runs that this process executes now."""
        return len(self._runs)

    @property
    def runs_tools(self) -> bool:
        """Whether a run of this process waits for a call of a server-side tool."""
        return any(claimed.run.runs_tools for claimed in self._claimed.values())

    def start(self) -> None:
        """Start to claim and execute runs."""
        if self._name is None:
            self._store.set_listener(self)
        self._wake_up.set()
        self._claiming.start(self._claim_forever())
        failure = "cannot send a heartbeat"
        self._heartbeats.start(
            repeat(self._send_heartbeat, self._pause_s, failure=failure, is_first_delayed=True)
        )

    async def drain(self, grace_s: float) -> None:
        """Claim no new run, and wait up to ``grace_s`` seconds until the claimed runs have ended.
        Then release the remaining runs. Another server continues them, or this server does so after
        its next start."""
        await self._claiming.close()
        await self._run_tasks.close(grace_s)
        await self.log_writer.wait_until_idle()
        await self._heartbeats.close()
        with suppress(StoreError):
            await self._store.release(self.owner)

    # --- Listener --------------------------------------------------------------------------------

    def on_run_queued(self) -> None:
        self._wake_up.set()

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        claim, task = self._runs.get(response_id, (None, None))
        if claim is None or task is None or claim.epoch >= epoch:
            return
        if (claimed := self._claimed.get(response_id)) is not None:
            claimed.sink.mark_lost()
        task.cancel()

    def steer(self, response_id: str) -> None:
        """End a run early, because a client has steered it. Does nothing if this process does not
        execute the run."""
        if (claimed := self._claimed.get(response_id)) is not None:
            claimed.run.steer()

    # --- the loops -------------------------------------------------------------------------------

    async def _claim_forever(self) -> None:
        while True:
            self._wake_up.clear()
            self._has_more = True
            free = self._lease.max_runs - len(self._runs)
            if free > 0:
                try:
                    claims = await self._store.claim(self._claim_query(limit=free))
                except StoreError as error:
                    _log.warning("cannot claim runs", error=error.message)
                else:
                    self._has_more = len(claims) == free
                    for claim in claims:
                        self._start(claim)
            await self._wake_up.wait()

    async def _send_heartbeat(self) -> None:
        # A server that crashes sends no notification, and notifications may be lost.
        if await self._store.heartbeat(self._claim_query(limit=1)):
            self._wake_up.set()
        if self._claimed:
            for response_id in await self._store.steered_runs(self.owner):
                self.steer(response_id)

    def _claim_query(self, *, limit: int) -> ClaimQuery:
        return ClaimQuery(
            owner=self.owner,
            models=self._models(),
            lease_s=self._lease.lease_s,
            limit=limit,
            tenant_limit=self._lease.max_runs_per_tenant,
            held=tuple(self._runs),
            name=self._name,
            now=int(self._clock()),
        )

    # --- a run -----------------------------------------------------------------------------------

    def _start(self, claim: Claim) -> None:
        name = claim.job.id
        task = self._run_tasks.start(self._execute(claim))
        self._runs[name] = (claim, task)

        def on_done(_: asyncio.Task[None]) -> None:
            makes_room = self._has_more or self._is_at_limit(claim.job.tenant)
            if self._runs.get(name, (None, None))[1] is task:
                del self._runs[name]
                self._claimed.pop(name, None)
            has_failed = not task.cancelled() and task.exception() is not None
            # A run that failed is claimed again, but not at once: it may fail every time.
            if makes_room and not has_failed:
                self._wake_up.set()

        task.add_done_callback(on_done)

    def _is_at_limit(self, tenant: str) -> bool:
        """Return whether this process already executes the maximum number of runs of the tenant."""
        limit = self._lease.max_runs_per_tenant
        return limit is not None and limit <= sum(
            claim.job.tenant == tenant for claim, _ in self._runs.values()
        )

    async def _execute(self, claim: Claim) -> None:
        try:
            # The heartbeats of this server keep the claim, so the operation is retried if the store
            # fails.
            claimed = await retry_until_available(lambda: self._resume(claim, self.log_writer))
            self._claimed[claim.job.id] = claimed
            with claimed.span:
                response = await claimed.run.drive(claimed.sink)
                record_response(claimed.span, response)
            self._on_end(response)
        except Interrupted as error:
            _log.warning("a run is interrupted", response=claim.job.id, error=str(error))
            # The next claim calls the model again, after the upstream has had time to recover.
            await asyncio.sleep(self._pause_s)
        except ReaderGone:
            _log.info("another server has taken over a run", response=claim.job.id)
