"""The values that stores keep: responses with their tokens, background runs, their event logs, and
webhook deliveries."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from antiphon.wire.items import Item
from antiphon.wire.response import Response
from antiphon.wire.timeline import RunTimes

from .usage import UsageRecord

__all__ = [
    "Append",
    "Claim",
    "ClaimQuery",
    "ConversationLock",
    "DueWebhook",
    "EventBatch",
    "EventPage",
    "ItemQuery",
    "Job",
    "NewRun",
    "Reservation",
    "ResponseQuery",
    "RunEnd",
    "RunLimit",
    "Steering",
    "StoredResponse",
    "SweepRecord",
    "TenantUsage",
    "TurnTokens",
    "WebhookEvent",
    "exceeds",
]


class TurnTokens(Struct, frozen=True, kw_only=True):
    """The token ids of one turn of a conversation: the input and the output of one response. To
    save space, ids that are the same as in the parent response are left out.

    ``base``: number of ids to take from the beginning of the parent's conversation. ``ids``: the
    ids that follow them, packed as little-endian 32-bit unsigned integers. So the conversation up
    to this turn has the ids ``parent_ids[:base] + ids``. ``fingerprint``: identifies the
    tokenizer.
    """

    base: int
    ids: bytes
    fingerprint: str


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response as it is stored: with the input items of its request, the token ids of its turn,
    and the times when its items were made. The input items do not include the items of earlier
    responses. The response has ended (it is completed, incomplete, failed or cancelled), or it
    belongs to a background run that has not ended."""

    response: Response
    input: tuple[Item, ...] = ()
    tokens: TurnTokens | None = None
    times: RunTimes | None = None


class ItemQuery(Struct, frozen=True, kw_only=True):
    """A query for a page of a conversation's items.

    - ``limit``: the maximum number of items.
    - ``newest_first``: whether the newest items come first.
    - ``after``: the id of the item before the page. None: the page begins with the first item.
    - ``until``: the id of the item before which the page stops. None: the page may go to the end.
    - ``kinds``: select only items of these types and messages with these roles. None: select all
      items.
    """

    limit: int
    newest_first: bool = False
    after: str | None = None
    until: str | None = None
    kinds: frozenset[str] | None = None

    @property
    def cursors(self) -> frozenset[str]:
        """The item ids in ``after`` and ``until``."""
        return frozenset(id for id in (self.after, self.until) if id is not None)


class ResponseQuery(Struct, frozen=True, kw_only=True):
    """A query for a page of a tenant's responses. A field that is None does not restrict the query.

    ``tool``: select only responses with this label (``ResponseSummary.labels``), such as
    ``web_search``. ``failed``: select only responses with an error (true) or without (false).
    ``text``: select only responses with this text in the preview of the input or of the output,
    ignoring case. ``after``: the id of the last response of the previous page.
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
    """Everything that is needed to start or continue a background run, except its stored response.

    ``id``: the id of the response. ``model``: the name of the served model, not an alias.
    ``request``: the request as JSON, without its input and with its secrets encrypted. The stored
    response holds the input. ``prompt``: the token ids of the first prompt, packed as little-endian
    32-bit unsigned integers; empty if the ids are unknown.
    """

    tenant: str
    id: str
    model: str
    request: bytes
    prompt: bytes = b""


class Claim(Struct, frozen=True, kw_only=True):
    """The right of one owner to work on a run. ``epoch``: a counter of the run that grows with each
    claim. A claim ends when the run is claimed again.

    ``attempts``: how many times the run was claimed since events were last appended to it. This
    claim is included. ``row``: the row number of the run. With the row number, the store
    finds the run faster than by its id.
    """

    job: Job
    epoch: int
    attempts: int = 1
    row: int = 0


class ConversationLock(Struct, frozen=True):
    """A response's lock on a conversation. ``conversation``: the id of the conversation. ``owner``:
    the Antiphon server that locked the conversation for this response."""

    conversation: str
    owner: str


class RunLimit(Struct, frozen=True):
    """A limit on the number of a tenant's runs that have not ended. ``api_key``: the name of an API
    key; the limit then counts only the runs of this key. None: the limit counts all runs of the
    tenant."""

    max_runs: int
    api_key: str | None = None


class EventBatch(Struct, frozen=True, kw_only=True):
    """A batch of events: consecutive events of one run, which are stored together.

    ``first``: sequence number of the first event. ``count``: number of events. ``lines``: one line
    of JSON per event, each ended by LF. ``tokens``: the token ids that the model sampled for these
    events, packed as in ``Job.prompt``. ``at``: Unix seconds when the batch was made, soon after
    its events; None if unknown.

    ``parts``: only for a batch that is too large for memory. They are smaller batches with the
    events of this batch; ``lines`` and ``tokens`` of this batch are then empty. Each part is
    created only when the iteration reaches it. A store may iterate over the parts repeatedly and in
    another thread.
    """

    first: int
    count: int
    lines: bytes = b""
    tokens: bytes = b""
    at: float | None = None
    parts: Iterable[EventBatch] = ()

    @property
    def rows(self) -> Iterable[EventBatch]:
        """The batches that a store writes: the parts of this batch, or the batch itself if it has
        no parts."""
        return self.parts or (self,)

    @property
    def last(self) -> int:
        """The sequence number of the last event."""
        return self.first + self.count - 1


class NewRun(Struct, frozen=True, kw_only=True):
    """A run to create, with its response and its first events.

    - ``job``: what is needed to start the run.
    - ``stored``: the response of the run, with its input.
    - ``batch``: the first events.
    - ``lock``: the lock of the conversation that the run continues. The run keeps this lock until
      its end.
    - ``api_key``: the name of the API key that creates the run. Limits of this key count the run.
    - ``limits``: the limits that the new run must not exceed.
    - ``by_name``: whether only claims that name the run find it. Such a run is in no queue, and
      limits do not count it.
    - ``start_by``: until this time (Unix seconds), the run waits behind all runs without
      ``start_by``. 0 means that it has none.
    """

    job: Job
    stored: StoredResponse
    batch: EventBatch
    lock: ConversationLock | None = None
    api_key: str = ""
    limits: Sequence[RunLimit] = ()
    by_name: bool = False
    start_by: int = 0


class ClaimQuery(Struct, frozen=True, kw_only=True):
    """Which runs an owner wants to claim. An owner is a process that executes runs.

    - ``owner``: the id of the owner.
    - ``models``: the models whose runs are claimed.
    - ``lease_s``: seconds without a heartbeat after which another owner is dead.
    - ``limit``: the largest number of runs to claim.
    - ``tenant_limit``: the largest number of runs of one tenant that ``owner`` may have. None means
      no limit.
    - ``held``: ids of the runs that ``owner`` works on. Other runs that the store records as runs
      of ``owner`` are claimed again, because nobody works on them. Such runs exist if ``owner`` did
      not get the result of an earlier claim, or if its work on a run failed. None means that
      ``owner`` works on all runs that the store records as its runs.
    - ``name``: the id of the run that is claimed, which was created with ``by_name``. None means
      all runs that were not.
    - ``now``: Unix seconds.
    """

    owner: str
    models: Collection[str] = ()
    lease_s: float = math.inf
    limit: int = 1
    tenant_limit: int | None = None
    held: Collection[str] | None = None
    name: str | None = None
    now: int = 0

    def finds(self, response_id: str, model: str, *, by_name: bool) -> bool:
        """Return whether this is a run that the owner wants to claim. ``by_name``: as in
        ``NewRun``."""
        if model not in self.models:
            return False
        return response_id == self.name if by_name else self.name is None


class Steering(Struct, frozen=True):
    """The input with which clients steer a run. ``count``: how many times it was changed.
    ``body``: the input, in a form that the store does not know; empty if there is none."""

    count: int = 0
    body: bytes = b""


class RunEnd(Struct, frozen=True, kw_only=True):
    """The end of a run.

    - ``stored``: the final response.
    - ``batch``: the last events. Their number may be 0.
    - ``conversation``: the conversation to which the input and the output are appended, if it still
      exists.
    - ``expires_at``: Unix seconds at which the response is deleted.
    - ``webhooks``: webhooks that are kept until they are delivered, even if the response is
      deleted.
    - ``usage``: a record to add to the usage log.
    - ``steering_count``: the ``Steering.count`` that the end takes into account. If the run was
      steered again since then, it does not end.
    - ``successor``: a run to create in the same transaction.
    """

    stored: StoredResponse
    batch: EventBatch
    conversation: str | None = None
    expires_at: int | None = None
    webhooks: tuple[WebhookEvent, ...] = ()
    usage: UsageRecord | None = None
    steering_count: int = 0
    successor: NewRun | None = None


class Reservation(Struct, frozen=True, kw_only=True):
    """A request to reserve room for a response that will be saved later.

    ``owner``: the process that generates the response. ``max_responses``, ``max_bytes``: the
    tenant's limits; None means no limit. ``lease_s``: seconds without a heartbeat after which the
    reservations of an owner no longer count.
    """

    tenant: str
    response_id: str
    owner: str
    max_responses: int | None = None
    max_bytes: int | None = None
    lease_s: float


class Append(Struct, frozen=True):
    """A batch to append to the event log of a claimed run."""

    claim: Claim
    batch: EventBatch


class WebhookEvent(Struct, frozen=True):
    """A webhook to be delivered. ``due_at``: the time of the first delivery attempt, in Unix
    seconds. ``tenant``, ``endpoint``: the webhook endpoint to which it is sent. ``endpoint`` is ""
    for the URL in the settings."""

    id: str
    body: bytes
    due_at: float
    tenant: str = ""
    endpoint: str = ""


class DueWebhook(Struct, frozen=True):
    """A webhook to be delivered now. ``attempts``: how many times delivery was tried, this time
    included. ``tenant``, ``endpoint``: see ``WebhookEvent``."""

    id: str
    body: bytes
    attempts: int
    tenant: str = ""
    endpoint: str = ""


class EventPage(Struct, frozen=True):
    """A page of an event log: batches in order. ``ended``: whether the run has ended and the log
    has no events after this page."""

    batches: tuple[EventBatch, ...]
    ended: bool


class TenantUsage(Struct, frozen=True):
    """The amount of data that a store holds of one tenant.

    ``responses``: the number of responses that can be loaded. ``responses_bytes``: the size of
    these responses and of the deleted ancestors that they need. ``queued_runs``: background runs
    without an owner. ``running_runs``: background runs with an owner.
    """

    responses: int = 0
    responses_bytes: int = 0
    queued_runs: int = 0
    running_runs: int = 0
    files: int = 0
    files_bytes: int = 0
    vector_stores: int = 0


class SweepRecord(Struct, frozen=True):
    """The record of the last sweep (deletion of expired data). The next sweep compares it with the
    clock, to detect a wrong clock.

    ``swept_at``: the time of the last sweep, in Unix seconds. A clock is in doubt if it is
    implausibly far ahead of ``swept_at``. ``clock_suspect_since``, ``clock_suspect_at``: the first
    and the latest time that a clock in doubt has shown. Both are None while the clock is plausible.
    """

    swept_at: int
    clock_suspect_since: int | None = None
    clock_suspect_at: int | None = None


def exceeds(total: int, limit: int | None) -> bool:
    """Return whether a total is larger than a limit. None means no limit."""
    return limit is not None and total > limit
