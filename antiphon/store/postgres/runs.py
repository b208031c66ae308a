"""Background runs in PostgreSQL, for many processes: claims, logs, and the news of them.

Who appends tells its own followers at once, and the other processes by one notice a transaction;
these fetch what their followers miss, all runs in one query. The database's clock decides who is
alive. It knows nothing of events.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence

from antiphon.store.records import (
    Append,
    Batch,
    Claim,
    DueWebhook,
    Job,
    Page,
    StoredResponse,
    WebhookEvent,
)
from antiphon.store.row_mapping import batch_of, claim_of
from antiphon.store.runs import Listener
from antiphon.store.subscriptions import Subscription, Tails

from .notifications import Notice, RunNotifications
from .pool import ConnectionPool, Transaction, key

__all__ = ["PostgresRuns"]

#: No event has a number beyond.
_LAST = 2**31 - 1


class PostgresRuns:
    """``RunStore`` over a cluster. ``keep`` keeps a response inside a transaction."""

    def __init__(self, cluster: ConnectionPool, keep: Callable[..., Awaitable[None]]) -> None:
        self._cluster = cluster
        self._keep = keep
        self._tails = Tails()
        self._name = secrets.token_hex(6)
        self._news = RunNotifications(cluster, self._tails, self._name)

    async def begin(self, job: Job, stored: StoredResponse, batch: Batch) -> None:
        async with self._cluster.transaction() as inside:
            await self._keep(inside, job.tenant, stored, listed=False)
            run = await inside.value(
                "begin_run", job.tenant, job.id, job.model, job.request, job.prompt
            )
            await self._add(inside, run, batch)
            await self._notify(inside, Notice(queued=True))
        self._news.queued()

    async def claim(
        self, owner: str, models: Collection[str], *, limit: int, lease_s: float
    ) -> tuple[Claim, ...]:
        if limit < 1:
            return ()
        async with self._cluster.transaction() as inside:
            rows = await inside.rows("claim", owner, list(models), limit, lease_s)
            claims = tuple(claim_of(tuple(row)[:7]) for row in rows)
            lost = [
                (claim.job.id, claim.epoch)
                for claim, row in zip(claims, rows, strict=True)
                if row["had"]
            ]
            if lost:
                await self._notify(inside, Notice(lost=tuple(lost)))
        self._news.lost(lost)
        return claims

    async def heartbeat(self, owner: str) -> None:
        await self._cluster.rows("beat", owner)

    async def release(self, owner: str) -> None:
        async with self._cluster.transaction() as inside:
            await inside.rows("release", owner)
            await self._notify(inside, Notice(queued=True))
        self._news.queued()

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        async with self._cluster.transaction() as inside:
            rows = await inside.rows("seize", tenant, key(response_id))
            if not rows:
                return None
            claim = claim_of(rows[0])
            lost = ((claim.job.id, claim.epoch),)
            await self._notify(inside, Notice(lost=lost))
        self._news.lost(lost)
        return claim

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        return await self._cluster.surely(self._append(appends)) if appends else frozenset()

    async def _append(self, appends: Sequence[Append]) -> frozenset[str]:
        places: dict[tuple[str, str, int], int] = {}
        whose: list[int] = []
        for append in appends:
            job = append.claim.job
            claim = (job.tenant, job.id, append.claim.epoch)
            whose.append(places.setdefault(claim, len(places) + 1))
        batches = zip(*(_columns(append.batch) for append in appends), strict=True)
        found = await self._cluster.rows(
            "append", self._name, *zip(*places, strict=True), whose, *batches
        )
        kept = set(found[0][0])
        for place, append in zip(whose, appends, strict=True):
            if place in kept:
                self._news.kept_here(append.claim.job.tenant, append.claim.job.id, append.batch)
        return frozenset(name for (_, name, _), place in places.items() if place not in kept)

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
        letter: WebhookEvent | None = None,
    ) -> bool:
        return await self._cluster.surely(
            self._end(claim, stored, batch, conversation, expires_at, letter)
        )

    async def _end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        conversation: str | None,
        expires_at: int | None,
        letter: WebhookEvent | None,
    ) -> bool:
        tenant, name = claim.job.tenant, claim.job.id
        async with self._cluster.transaction() as inside:
            run = await inside.value("end_run", tenant, name, claim.epoch)
            if run is None:
                return False
            await self._add(inside, run, batch)
            await self._keep(
                inside,
                tenant,
                stored,
                conversation,
                expires_at=expires_at,
                listed=stored.response.store,
            )
            await inside.rows("forget_hold", tenant, name)
            if letter is not None:
                await inside.rows("add_letter", letter.id, letter.body, letter.due_at)
            await self.tell(inside, over=[(tenant, name)])
        if batch.count:
            self._news.kept_here(tenant, name, batch)
        self.touch(tenant, name)
        return True

    async def due(self, now: float, until: float, *, limit: int) -> tuple[DueWebhook, ...]:
        return tuple(DueWebhook(*row) for row in await self._cluster.rows("due", now, until, limit))

    async def postpone(self, letter_id: str, until: float) -> None:
        await self._cluster.rows("postpone_letter", letter_id, until)

    async def settle(self, letter_id: str) -> None:
        await self._cluster.rows("settle_letter", letter_id)

    async def history(self, claim: Claim) -> tuple[Batch, ...]:
        rows = await self._cluster.rows("history", claim.job.tenant, claim.job.id)
        return tuple(map(batch_of, rows))

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Page | None:
        # A number of events beyond ``after`` is a number of the log: no event is left out.
        first, last = min(after + 1, _LAST), min(after + limit, _LAST)
        rows = await self._cluster.rows("events", tenant, key(response_id), first, last)
        if not rows:
            return None
        batches = tuple(batch_of(row[1:]) for row in rows if row[1] is not None)
        return Page(batches, ended=rows[0][0])

    def follow(self, tenant: str, response_id: str) -> Subscription:
        self._news.begin()
        return self._tails.follow(tenant, response_id)

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        row = (tenant, key(conversation_id), holder, owner, lease_s)
        return bool(await self._cluster.rows("hold", *row))

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        await self._cluster.rows("let_go", tenant, key(conversation_id), holder)

    def listen(self, listener: Listener) -> None:
        self._news.tell(listener)

    async def close(self) -> None:
        """No more news."""
        await self._news.close()

    # --- telling ---------------------------------------------------------------------------------

    async def tell(self, inside: Transaction, *, over: Sequence[tuple[str, str]]) -> None:
        """Other processes, that these runs are over or gone."""
        await self._notify(inside, Notice(over=tuple(over)))

    def touch(self, tenant: str, response_id: str) -> None:
        """The followers here, that something happened to their run."""
        self._tails.touch([(tenant, response_id)])

    async def _notify(self, inside: Transaction, notice: Notice) -> None:
        await inside.rows("notify", notice.written(self._name))

    async def _add(self, inside: Transaction, run: int, batch: Batch) -> None:
        if batch.count:
            await inside.rows("add_batch", run, *_columns(batch))


def _columns(batch: Batch) -> tuple[int, int, bytes, bytes]:
    return batch.first, batch.count, batch.lines, batch.tokens
