"""The store of runs in an SQL database: what is the same in all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Generic

from msgspec.structs import astuple

from antiphon.store.common.saving import Saving
from antiphon.store.records import (
    Claim,
    ConversationLock,
    DueWebhook,
    EventBatch,
    NewRun,
    RunEnd,
    RunLimit,
    Steering,
    WebhookEvent,
)
from antiphon.store.runs import RunLimitReached, RunStore
from antiphon.store.sql.row_mapping import batch_row, event_batch_of, steering_of

from .executor import Executor, Tx, first, index_key

#: Bytes of events after which a page ends.
PAGE_BYTES = 1 << 20
#: The largest sequence number.
MAX_SEQUENCE_NUMBER = 2**31 - 1
#: A function that stores a response within a transaction.
SaveStep = Callable[[Tx], Coroutine[object, None, None]]
#: Prepares the storage of a response, before the transaction.
PrepareSave = Callable[[Saving], Awaitable[SaveStep[Tx]]]


class SqlRuns(RunStore, Generic[Tx]):
    """Implements ``RunStore`` with tables, except for what each database does in its own way:
    claims, leases, locks, and pages of events."""

    supports_steering = True

    def __init__(self, executor: Executor[Tx], prepare_save: PrepareSave[Tx]) -> None:
        self._executor = executor
        self._prepare_save = prepare_save

    # --- within a transaction --------------------------------------------------------------------

    @abstractmethod
    async def has_lock(
        self,
        transaction: Tx,
        tenant: str,
        holder: str,
        lock: ConversationLock,
        *,
        for_run: bool = False,
    ) -> bool:
        """Return whether the response ``holder`` has this conversation lock. If it has, no other
        response can take the lock before the end of the transaction. ``for_run``: also record that
        the lock belongs to the run of the response from now on."""

    @abstractmethod
    async def _begin(self, transaction: Tx, run: NewRun) -> None:
        """Add a run with its first events."""

    @abstractmethod
    async def _end(self, transaction: Tx, claim: Claim, end: RunEnd) -> int | None:
        """Mark a run as ended, and return its row number. Returns None and changes nothing if the
        claim is no longer valid, or if the run was steered since ``end`` was made."""

    async def _add_batch(self, transaction: Tx, run: int, batch: EventBatch) -> None:
        """Append a batch of events to a run, or do nothing if the batch has no events. ``run``: the
        row number of the run."""
        for part in batch.rows if batch.count else ():
            await transaction.change("add_batch", run, *batch_row(part))

    async def announce_end(self, transaction: Tx, tenant: str, response_id: str) -> None:
        """Tell other processes that a run has ended, when the transaction commits."""

    # --- after the commit ------------------------------------------------------------------------

    @abstractmethod
    def _on_created(self, run: NewRun) -> None:
        """Notify those who claim runs that this run can be claimed."""

    @abstractmethod
    def _on_ended(self, claim: Claim, end: RunEnd) -> None:
        """Notify the subscribers of a run that it has ended."""

    def _on_not_ended(self, claim: Claim) -> None:
        """Called after ``_end`` has returned None."""

    # --- the contract ----------------------------------------------------------------------------

    async def create(self, run: NewRun) -> bool:
        tenant, response_id, lock = run.job.tenant, run.job.id, run.lock
        save = await self._prepare_save(Saving.of_new_run(run))

        async def work(transaction: Tx) -> bool | RunLimit:
            for limit in run.limits:
                count = await transaction.value("count_unended_runs", tenant, limit.api_key)
                if count >= limit.max_runs:
                    return limit
            if lock is not None and not await self.has_lock(
                transaction, tenant, response_id, lock, for_run=True
            ):
                return False
            await save(transaction)
            await self._begin(transaction, run)
            return True

        def notify(created: bool | RunLimit) -> None:
            if created is True:
                self._on_created(run)

        alone = ("runs", tenant) if run.limits else None
        created = await self._executor.write(work, alone=alone, then=notify)
        if isinstance(created, RunLimit):
            raise RunLimitReached(created)
        return created

    async def end(self, claim: Claim, end: RunEnd) -> bool:
        key = (claim.job.tenant, claim.job.id)
        successor = end.successor
        save = await self._prepare_save(Saving.of_run_end(claim.job.tenant, end))
        save_next = await self._prepare_save(Saving.of_new_run(successor)) if successor else None

        async def work(transaction: Tx) -> bool:
            run = await self._end(transaction, claim, end)
            if run is None:
                return False
            await self._add_batch(transaction, run, end.batch)
            await save(transaction)
            await transaction.change("drop_locks", *key)
            await transaction.change_many("add_webhook", [astuple(each) for each in end.webhooks])
            if successor is not None and save_next is not None:
                await save_next(transaction)
                await self._begin(transaction, successor)
            await self.announce_end(transaction, *key)
            return True

        def notify(is_ended: bool) -> None:
            if not is_ended:
                self._on_not_ended(claim)
                return
            self._on_ended(claim, end)
            if successor is not None:
                self._on_created(successor)

        return await self._executor.write(work, then=notify)

    async def steering(self, tenant: str, response_id: str) -> Steering | None:
        key = (tenant, index_key(response_id))
        return first(await self._executor.decoded_rows(steering_of, "steering", *key))

    async def steered_runs(self, owner: str) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._executor.rows("steered_runs", owner))

    async def steer(self, tenant: str, response_id: str, steering: Steering) -> bool:
        row = (tenant, index_key(response_id), steering.count, steering.body)
        return await self._executor.change("steer", *row) > 0

    async def count_unended(self, tenant: str, api_key: str | None = None) -> int:
        ((count,),) = await self._executor.rows("count_unended_runs", tenant, api_key)
        return int(count)

    async def add_webhooks(self, webhooks: Sequence[WebhookEvent]) -> None:
        await self._executor.change_many("add_webhook", [astuple(each) for each in webhooks])

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        async def work(transaction: Tx) -> tuple[DueWebhook, ...]:
            due = [DueWebhook(*row) for row in await transaction.rows("due_webhooks", now, limit)]
            rows = [(each.id, retry_at) for each in due]
            await transaction.change_many("count_webhook_attempt", rows)
            return tuple(due)

        if not await self._executor.rows("due_webhooks", now, 1):
            return ()
        return await self._executor.write(work)

    async def settle_webhook(self, event_id: str, retry_at: float | None) -> None:
        if retry_at is None:
            await self._executor.change("drop_webhook", event_id)
        else:
            await self._executor.change("postpone_webhook", event_id, retry_at)

    async def load_batches(self, claim: Claim) -> tuple[EventBatch, ...]:
        key = (claim.job.tenant, claim.job.id)
        return tuple(await self._executor.decoded_rows(event_batch_of, "history", *key))

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        await self._executor.change("release_lock", tenant, index_key(conversation_id), holder)
