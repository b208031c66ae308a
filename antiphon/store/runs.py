"""The contract of a run store: background runs, kept so that any process can begin, continue,
follow and end them. What a run says is kept before anybody hears it.

A run belongs to one owner at a time, under an epoch: whoever takes it over raises the epoch, and
what the former owner still writes is refused. It knows lines and token ids, not what they mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from .records import Append, Batch, Claim, DueWebhook, Job, Page, StoredResponse, WebhookEvent
from .subscriptions import Subscription

__all__ = ["RunListener", "RunStore"]


class RunListener(Protocol):
    """Who works on runs in this process, and is told what others do. Called in the event loop;
    must not block or raise. Messages may be lost: they only make things quicker."""

    def on_run_queued(self) -> None:
        """There may be a run to claim."""

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        """The run is somebody else's from ``epoch`` on."""


class RunStore(Protocol):
    """Safe for concurrent use in one event loop; with PostgreSQL, by many processes. All methods
    raise ``RunError`` where the store does not answer."""

    async def create(self, job: Job, stored: StoredResponse, batch: Batch) -> None:
        """Keep a new run that nobody has claimed: its response as it stands, with its input, and
        its first events. The response can be loaded from now on; its items can be referred to only
        once it has ended, and only if ``response.store``."""

    async def claim(
        self, owner: str, models: Collection[str], *, limit: int, lease_s: float
    ) -> tuple[Claim, ...]:
        """Take runs of these models that nobody works on, oldest first: those never claimed, those
        released, and those whose owner was last heard of ``lease_s`` ago or earlier. A store of one
        process knows better who lives: in a file that was just opened, nobody does. No run goes to
        two owners."""

    async def heartbeat(self, owner: str) -> None:
        """This owner is alive: so are its claims and its holds."""

    async def release(self, owner: str) -> None:
        """The owner stops: its runs can be claimed at once, its holds without a run are gone."""

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        """Take a run from whoever has it, in order to end it. None: unknown, or over."""

    async def append(self, appends: Sequence[Append]) -> frozenset[str]:
        """Keep batches, in one step; a run may occur several times, in order. When it returns they
        are durable, and followers everywhere have been told. A batch that is there already is not
        kept twice: whoever got no answer asks again. Returns the ids of the runs that were lost:
        taken over, over or deleted."""

    async def end(
        self,
        claim: Claim,
        stored: StoredResponse,
        batch: Batch,
        *,
        conversation: str | None = None,
        expires_at: int | None = None,
        webhook: WebhookEvent | None = None,
    ) -> bool:
        """The run's last events (``batch.count`` may be 0) and its response in its terminal state,
        in one step, with what ``Store.save`` does for ``conversation``; its hold is given back.
        ``expires_at`` (unix seconds): the response is forgotten then. ``letter`` is kept until it
        is settled, whatever becomes of the response. False, and nothing kept: the run was lost."""

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        """Letters due at ``now``; those that waited longest, if there are more. Nobody is given
        them again before ``until``."""

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        """It is due again then. Nothing, if it is settled."""

    async def delete_webhook(self, event_id: str) -> None:
        """It need not be delivered any more."""

    async def load_batches(self, claim: Claim) -> tuple[Batch, ...]:
        """All of a run's batches, with their tokens: what whoever goes on with it has to know."""

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Page | None:
        """Whole batches of the events beyond sequence number ``after`` (the first may begin before
        it), until at least ``limit`` events are found or there are no more. ``tokens`` are left
        out. None: no such run, or its events are no longer kept."""

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        """What this run appends from now on. To be closed; to be opened before ``events`` is read,
        so that nothing falls between."""

    async def lock_conversation(
        self, tenant: str, conversation_id: str, holder: str, owner: str, *, lease_s: float
    ) -> bool:
        """Hold a conversation for the response ``holder``. False: another response has it, whose
        owner is alive or whose run waits for one. A hold passes on with the claim of its run; where
        one process has the store it need not outlive it, so whoever goes on with a run asks again.
        It may come before ``begin``."""

    async def unlock_conversation(self, tenant: str, conversation_id: str, holder: str) -> None:
        """Give the hold back, if it is still this one's."""

    def set_listener(self, listener: RunListener) -> None:
        """Tell this listener, and nobody else, what happens from now on."""
