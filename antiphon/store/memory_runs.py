"""Background runs in memory: the reference of their contract. One process, and nothing survives it.

Leases are of no use here: whoever has a run lives as long as the store does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import RunError

from .base import StoredResponse
from .holds import Holds
from .runs import Append, Batch, Claim, Job, Listener, Page
from .tails import Tail, Tails

__all__ = ["MemoryRuns"]

_Key = tuple[str, str]

#: Owns what was seized: it is about to end, and left alone by those who look for work.
_NOBODY = ""


class _Run(Struct):
    """A run and its log. ``ended``: seconds (unix) at which it was over."""

    job: Job
    batches: list[Batch]
    epoch: int = 0
    attempts: int = 0
    owner: str | None = None
    ended: int | None = None

    @property
    def number(self) -> int:
        """The sequence number of the next event."""
        return self.batches[-1].last + 1 if self.batches else 0


#: Keeps a response as it stands.
Keep = Callable[[str, StoredResponse, str | None, int | None], None]


class MemoryRuns:
    """``RunStore`` over dictionaries, beside the responses that ``keep`` keeps."""

    def __init__(self, keep: Keep, check: Callable[[], None]) -> None:
        self._keep = keep
        self._check = check
        self._runs: dict[_Key, _Run] = {}
        self._holds = Holds()
        self._tails = Tails()
        self._listener: Listener | None = None

    async def begin(self, job: Job, stored: StoredResponse, batch: Batch) -> None:
        self._check()
        self._runs[job.tenant, job.id] = _Run(job, [batch])
        self._keep(job.tenant, stored, None, None)
        self._queued()

    async def claim(
        self, owner: str, models: Collection[str], *, limit: int, lease_s: float
    ) -> tuple[Claim, ...]:
        self._check()
        claims: list[Claim] = []
        for run in self._runs.values():
            if len(claims) >= limit:
                break
            if run.ended is not None or run.owner is not None or run.job.model not in models:
                continue
            self._take(run, owner)
            run.attempts += 1
            claims.append(Claim(job=run.job, epoch=run.epoch, attempts=run.attempts))
        return tuple(claims)

    async def beat(self, owner: str) -> None:
        self._check()

    async def release(self, owner: str) -> None:
        self._check()
        for run in self._runs.values():
            if run.owner == owner and run.ended is None:
                run.owner = None
        running = {run.job.id for run in self._runs.values() if run.ended is None}
        self._holds.release(owner, running)
        self._queued()

    async def seize(self, tenant: str, response_id: str) -> Claim | None:
        self._check()
        run = self._runs.get((tenant, response_id))
        if run is None or run.ended is not None:
            return None
        self._take(run, _NOBODY)
        return Claim(job=run.job, epoch=run.epoch)

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        self._check()
        lost: set[str] = set()
        for append in appends:
            run = self._mine(append.claim)
            if run is None:
                lost.add(append.claim.job.id)
            elif append.batch.first == run.number:
                self._add(run, append.batch)
        return frozenset(lost)

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
    ) -> bool:
        self._check()
        run = self._mine(claim)
        if run is None:
            return False
        run.ended = 0
        self._add(run, batch)
        self._keep(claim.job.tenant, stored, conversation, expires_at)
        self._holds.forget(claim.job.id)
        self._tails.touch([(claim.job.tenant, claim.job.id)])
        return True

    async def history(self, claim: Claim) -> tuple[Batch, ...]:
        self._check()
        run = self._runs.get((claim.job.tenant, claim.job.id))
        return tuple(run.batches) if run is not None else ()

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Page | None:
        self._check()
        run = self._runs.get((tenant, response_id))
        if run is None:
            return None
        found: list[Batch] = []
        count = 0
        for batch in run.batches:
            if batch.last <= after:
                continue
            if count >= limit:
                return Page(tuple(found), ended=False)
            found.append(replace(batch, tokens=b""))
            count += batch.count
        return Page(tuple(found), ended=run.ended is not None)

    def follow(self, tenant: str, response_id: str) -> Tail:
        return self._tails.follow(tenant, response_id)

    async def hold(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        self._check()
        return self._holds.hold(tenant, conversation_id, holder, owner)

    async def let_go(self, tenant: str, conversation_id: str, holder: str) -> None:
        self._holds.let_go(tenant, conversation_id, holder)

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    # --- for the store beside it -----------------------------------------------------------------

    def drop(self, key: _Key) -> None:
        """The response is gone, and so is its run."""
        run = self._runs.pop(key, None)
        if run is not None:
            self._tails.touch([key])

    def is_running(self, key: _Key) -> bool:
        """The run has not ended."""
        run = self._runs.get(key)
        return run is not None and run.ended is None

    def expire(self, before: int, now: int) -> None:
        """Forget the events of runs that ended before then. One that ended since the last look
        counts from now on, for nothing here has a clock."""
        for key, run in list(self._runs.items()):
            if run.ended == 0:
                run.ended = now
            if run.ended is not None and run.ended < before:
                self.drop(key)

    # --- within ----------------------------------------------------------------------------------

    def _take(self, run: _Run, owner: str) -> None:
        had = run.owner
        run.owner = owner
        run.epoch += 1
        if had and self._listener is not None:
            self._listener.lost(run.job.id, run.epoch)

    def _mine(self, claim: Claim) -> _Run | None:
        run = self._runs.get((claim.job.tenant, claim.job.id))
        if run is None or run.ended is not None or run.epoch != claim.epoch:
            return None
        return run

    def _add(self, run: _Run, batch: Batch) -> None:
        if batch.count:
            if batch.first != run.number:
                raise RunError("The store was given events out of order.")
            run.batches.append(batch)
            run.attempts = 0
            self._tails.put(run.job.tenant, run.job.id, replace(batch, tokens=b""))

    def _queued(self) -> None:
        if self._listener is not None:
            self._listener.queued()
