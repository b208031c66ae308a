"""Background runs in PostgreSQL, for many processes: claims, logs, and the news of them.

Who appends tells its own followers at once, and the other processes by one notice a transaction;
these fetch what their followers miss, all runs in one query. The database's clock decides who is
alive. It knows nothing of events.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence

from .base import StoredResponse
from .cluster import Cluster, Transaction, key
from .news import News, Notice
from .rows import batch_of, claim_of
from .runs import Append, Batch, Claim, Job, Listener, Page
from .tails import Tail, Tails

__all__ = ["PostgresRuns"]

#: Rows of a log read in one step, whatever the limit.
_ROWS = 1_000
#: The lock that an owner shares among its appends, and that is taken from it with a run. One lock
#: an append: to lock the row of every run would write as much again as the events do.
_APPENDING = 0x616E74


class PostgresRuns:
    """``RunStore`` over a cluster. ``keep`` keeps a response inside a transaction."""

    def __init__(self, cluster: Cluster, keep: Callable[..., Awaitable[None]]) -> None:
        self._cluster = cluster
        self._keep = keep
        self._tails = Tails()
        self._name = secrets.token_hex(6)
        self._news = News(cluster, self._tails, self._name)

    async def begin(self, job: Job, stored: StoredResponse, batch: Batch) -> None:
        row = (job.tenant, job.id, job.model, job.request, job.prompt)
        async with self._cluster.transaction() as inside:
            await self._keep(inside, job.tenant, stored, listed=False)
            run = await inside.value("begin_run", *row)
            await inside.rows("add_batch", run, *_columns(batch))
            await self._notify(inside, Notice(queued=True))
        self._news.queued()

    async def claim(
        self, owner: str, models: Collection[str], *, limit: int, lease_s: float
    ) -> tuple[Claim, ...]:
        if limit < 1:
            return ()
        async with self._cluster.transaction() as inside:
            rows = await inside.rows("claim", owner, list(models), limit, lease_s)
            claims = tuple(claim_of(tuple(row)[:8]) for row in rows)
            had = [row["had"] for row in rows]
            lost = [
                (claim.job.id, claim.epoch)
                for claim, owner in zip(claims, had, strict=True)
                if owner
            ]
            await self._take_away(inside, lost, had)
        self._news.lost(lost)
        return claims

    async def beat(self, owner: str) -> None:
        await self._cluster.rows("beat", owner)

    async def release(self, owner: str) -> None:
        async with self._cluster.transaction() as inside:
            await inside.rows("release", owner)
            await self._notify(inside, Notice(queued=True))
        self._news.queued()

    async def seize(self, tenant: str, response_id: str) -> Claim | None:
        async with self._cluster.transaction() as inside:
            rows = await inside.rows("seize", tenant, key(response_id))
            if not rows:
                return None
            claim = claim_of(tuple(rows[0])[:8])
            lost = [(claim.job.id, claim.epoch)]
            await self._take_away(inside, lost, [rows[0]["had"]])
        self._news.lost(lost)
        return claim

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        jobs = [append.claim.job for append in appends]
        batches = [append.batch for append in appends]
        owners = sorted({append.claim.owner for append in appends})
        async with self._cluster.transaction() as inside:
            await inside.rows("append_alone", _APPENDING, owners)
            mine = await inside.rows(
                "append",
                [job.tenant for job in jobs],
                [job.id for job in jobs],
                [append.claim.epoch for append in appends],
                *map(list, zip(*map(_columns, batches), strict=True)),
            )
            if mine:
                await self._notify(inside, Notice(grown=tuple(row["seq"] for row in mine)))
        held = {(row["tenant"], row["id"]) for row in mine}
        for job, batch in zip(jobs, batches, strict=True):
            if (job.tenant, job.id) in held:
                self._news.kept_here(job.tenant, job.id, batch)
        return frozenset(job.id for job in jobs if (job.tenant, job.id) not in held)

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
    ) -> bool:
        job = claim.job
        async with self._cluster.transaction() as inside:
            run = await inside.value("end_run", job.tenant, job.id, claim.epoch)
            if run is None:
                return False
            if batch.count:
                await inside.rows("add_batch", run, *_columns(batch))
            await self._keep(
                inside,
                job.tenant,
                stored,
                conversation,
                expires_at=expires_at,
                listed=stored.response.store,
            )
            await inside.rows("forget_hold", job.id)
            await self.tell(inside, over=[(job.tenant, job.id)])
        if batch.count:
            self._news.kept_here(job.tenant, job.id, batch)
        self.touch(job.tenant, job.id)
        return True

    async def history(self, claim: Claim) -> tuple[Batch, ...]:
        rows = await self._cluster.rows("history", claim.job.tenant, claim.job.id)
        return tuple(map(batch_of, rows))

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Page | None:
        runs = await self._cluster.rows("run", tenant, key(response_id))
        if not runs:
            return None
        run, end, ended = runs[0]
        found: list[Batch] = []
        at, count = after + 1, 0
        while at < end and count < limit:
            rows = await self._cluster.rows("events", run, at, min(limit - count, _ROWS))
            if not rows:
                break
            for batch in map(batch_of, rows):
                if count < limit:
                    found.append(batch)
                    count += batch.count
            at = found[-1].last + 1
        return Page(tuple(found), ended=ended and at >= end)

    def follow(self, tenant: str, response_id: str) -> Tail:
        return self._tails.follow(tenant, response_id)

    async def hold(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        row = (tenant, key(conversation_id), holder, owner, lease_s)
        return bool(await self._cluster.rows("hold", *row))

    async def let_go(self, tenant: str, conversation_id: str, holder: str) -> None:
        await self._cluster.rows("let_go", tenant, key(conversation_id), holder)

    def listen(self, listener: Listener) -> None:
        self._news.start(listener)

    async def close(self) -> None:
        """No more news."""
        await self._news.close()

    # --- telling others --------------------------------------------------------------------------

    async def tell(self, inside: Transaction, *, over: Sequence[tuple[str, str]]) -> None:
        """Other processes, that these runs are over or gone."""
        await self._notify(inside, Notice(over=tuple(over)))

    def touch(self, tenant: str, response_id: str) -> None:
        """The followers here, that something happened to their run."""
        self._tails.touch([(tenant, response_id)])

    async def _take_away(
        self,
        inside: Transaction,
        lost: Sequence[tuple[str, int]],
        owners: Sequence[str | None],
    ) -> None:
        """The runs have a new epoch; their owners may be about to append under the old one. Those
        appends end before this transaction does, and later ones see what it did."""
        if lost:
            await inside.rows("take_from", _APPENDING, sorted({o for o in owners if o}))
            await self._notify(inside, Notice(lost=tuple(lost)))

    async def _notify(self, inside: Transaction, notice: Notice) -> None:
        await inside.rows("notify", notice.written(self._name))


def _columns(batch: Batch) -> tuple[int, int, bytes, bytes]:
    return batch.first, batch.count, batch.lines, batch.tokens
