"""The values that stores keep: responses with their tokens, background runs, their event logs, and
webhook deliveries."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from antiphon.wire.items import Item
from antiphon.wire.response import Response
from antiphon.wire.timeline import RunTimes

__all__ = [
    "Append",
    "Claim",
    "ConversationLock",
    "DueWebhook",
    "EventBatch",
    "EventPage",
    "ItemQuery",
    "Job",
    "ResponseQuery",
    "RunLimit",
    "StoredResponse",
    "SweepRecord",
    "TenantUsage",
    "TurnTokens",
    "WebhookEvent",
]


class TurnTokens(Struct, frozen=True, kw_only=True):
    """The token ids one turn added. All ids up to this turn are
    ``all ids of the parent[:base] + ids``.

    ``ids``: packed little-endian 32-bit unsigned integers. ``fingerprint`` names the tokenizer.
    """

    base: int
    ids: bytes
    fingerprint: str


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response, its own input items, the token ids of its turn, and when its items were made. The
    response is in a terminal state, except that of a background run still at work."""

    response: Response
    input: tuple[Item, ...] = ()
    tokens: TurnTokens | None = None
    times: RunTimes | None = None


class ItemQuery(Struct, frozen=True, kw_only=True):
    """A selection of a conversation's items: at most ``limit``, in the given order, after the item
    ``after`` and before the item ``until``. ``kinds``: only items of these types, and messages of
    these roles."""

    limit: int
    newest_first: bool = False
    after: str | None = None
    until: str | None = None
    kinds: frozenset[str] | None = None

    @property
    def cursors(self) -> frozenset[str]:
        """The ids of items that the query names."""
        return frozenset(id for id in (self.after, self.until) if id is not None)


class ResponseQuery(Struct, frozen=True, kw_only=True):
    """A page of a tenant's responses. None means any.

    ``tool``: a kind in the summary's ``tools``. ``failed``: whether there is an error. ``text``:
    occurs in a preview, ignoring case. ``after``: the last response before the page.
    """

    status: str | None = None
    model: str | None = None
    tool: str | None = None
    failed: bool | None = None
    conversation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    text: str | None = None
    newest_first: bool = True
    after: str | None = None
    limit: int = 20


class Job(Struct, frozen=True, kw_only=True):
    """Everything needed to start or continue a background run, except its stored response.

    ``id``: the id of the response. ``model``: the served model's own name. ``request``: the request
    as JSON without its input, which the stored response holds, and with its secrets encrypted.
    ``prompt``: token ids of the first prompt, packed little-endian 32-bit; empty if the prompt's
    ids are unknown.
    """

    tenant: str
    id: str
    model: str
    request: bytes
    prompt: bytes = b""


class Claim(Struct, frozen=True, kw_only=True):
    """The right to work on a run. It ends when another owner raises the run's epoch. ``attempts``:
    how many times the run was claimed since its last append, this claim included. ``row``: the
    number of the run in the store; with it, the store need not search the run by its id."""

    job: Job
    epoch: int
    attempts: int = 1
    row: int = 0


class ConversationLock(Struct, frozen=True):
    """The lock of a conversation, as the response that holds it names it. ``owner``: the server
    that locked it for this response."""

    conversation: str
    owner: str


class RunLimit(Struct, frozen=True):
    """A limit on the unfinished runs of a tenant. ``api_key``: only runs of this key count."""

    max_runs: int
    api_key: str | None = None


class EventBatch(Struct, frozen=True, kw_only=True):
    """Consecutive events of one run.

    ``first``: sequence number of the first event. ``lines``: one line of JSON an event, each ended
    by LF. ``tokens``: the token ids sampled behind these events, packed as in ``Job.prompt``.
    ``at``: unix seconds when the batch was made, soon after its events; None if unknown.
    ``parts``: the batch as several ones, which are made while a store iterates over them, perhaps
    repeatedly and in another thread; ``lines`` and ``tokens`` are empty then. So a batch may be
    larger than what should be in memory at once.
    """

    first: int
    count: int
    lines: bytes = b""
    tokens: bytes = b""
    at: float | None = None
    parts: Iterable[EventBatch] = ()

    @property
    def rows(self) -> Iterable[EventBatch]:
        """The batches to store."""
        return self.parts or (self,)

    @property
    def last(self) -> int:
        """The sequence number of the last event."""
        return self.first + self.count - 1


class Append(Struct, frozen=True):
    """A batch to append to the event log of a claimed run."""

    claim: Claim
    batch: EventBatch


class WebhookEvent(Struct, frozen=True):
    """A webhook to be delivered. ``due_at``: unix seconds."""

    id: str
    body: bytes
    due_at: float


class DueWebhook(Struct, frozen=True):
    """A webhook to be delivered now. ``attempts``: how many times delivery was tried, this time
    included."""

    id: str
    body: bytes
    attempts: int


class EventPage(Struct, frozen=True):
    """Batches in order. ``ended``: the run has ended and no events follow these."""

    batches: tuple[EventBatch, ...]
    ended: bool


class TenantUsage(Struct, frozen=True):
    """The amount of data that a store holds of one tenant.

    ``responses``: those that can be loaded. ``responses_bytes``: size of these and of the deleted
    ancestors that they need. ``queued_runs``, ``running_runs``: background runs without and with an
    owner.
    """

    responses: int = 0
    responses_bytes: int = 0
    queued_runs: int = 0
    running_runs: int = 0
    files: int = 0
    files_bytes: int = 0
    skills_bytes: int = 0
    vector_stores: int = 0


class SweepRecord(Struct, frozen=True):
    """When the store was swept last, in unix seconds, so that a wrong clock is noticed.

    ``doubted_since`` and ``doubted_at``: the first and the latest time shown by a clock that is
    implausibly far ahead of ``swept_at``; None while the clock is plausible.
    """

    swept_at: int
    doubted_since: int | None = None
    doubted_at: int | None = None
