"""The contract of a store: finished responses with their inputs and tokens, and conversations.

A response is stored with its own input, output and tokens and a link to its parent, so a turn costs
what the turn adds. The memory store is the reference.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct

from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary

from .audit import AuditLog
from .blob_storage import BlobStorage
from .containers import ContainerDirectory
from .files import FileStore
from .keys import KeyStore
from .rates import RateStore
from .records import (
    ConversationLock,
    ItemQuery,
    ResponseQuery,
    StoredResponse,
    SweepRecord,
    TenantUsage,
)
from .runs import RunStore
from .skills import SkillStore
from .usage import UsageLog, UsageRecord
from .vectors import VectorIndex

__all__ = ["Retention", "Store"]


class Retention(Struct, frozen=True, kw_only=True):
    """Bounds of a store, over all tenants. None means no bound. The oldest responses are deleted
    first: with ``max_responses`` and ``max_bytes``, those of the tenant that holds most.

    ``max_bytes`` counts all stored rows, including deleted ancestors that descendants still need.
    """

    max_age_s: float | None = None
    max_responses: int | None = None
    max_bytes: int | None = None
    #: Seconds for which the events of a background run are kept after its end, for readers that
    #: reconnect.
    max_log_age_s: float | None = 3600
    #: Seconds for which the sums of the usage log are kept.
    max_usage_age_s: float | None = None
    #: Seconds for which records of the audit log are kept.
    max_audit_age_s: float | None = None

    @property
    def bounds_size(self) -> bool:
        """Whether the number of responses or their size is bounded."""
        return self.max_responses is not None or self.max_bytes is not None

    def is_too_old(self, age_s: float) -> bool:
        """Return whether a response of this age must be deleted."""
        return self.max_age_s is not None and age_s > self.max_age_s


class Store(Protocol):
    """The contract of a store. All methods are per tenant: the id of another tenant is unknown.

    Safe for concurrent use in one event loop. A deleted or expired response cannot be loaded. The
    parts of it that its descendants need are kept until the last descendant is deleted; its id does
    not lead to them.
    """

    @property
    def runs(self) -> RunStore:
        """The background runs of this store."""

    @property
    def files(self) -> FileStore:
        """The files of this store."""

    @property
    def skills(self) -> SkillStore:
        """The skills of this store."""

    @property
    def vectors(self) -> VectorIndex:
        """The vector stores of this store."""

    @property
    def keys(self) -> KeyStore:
        """The API keys of the server; they belong to no tenant."""

    @property
    def audit(self) -> AuditLog:
        """The audit log: administrative acts and who did them."""

    @property
    def rates(self) -> RateStore:
        """Request counts of clients with limits, exchanged between the processes of this store."""

    @property
    def containers(self) -> ContainerDirectory:
        """The directory of containers and of the processes that own them."""

    @property
    def usage_log(self) -> UsageLog:
        """The usage log: what each request used."""

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        """Store a response, replacing one with the same id. Return when it is durable. A response
        that has a run must have ``background`` set in each call.

        ``stored.response.previous_response_id`` links to the parent. ``lock``: append the input and
        the output to this conversation in the same transaction, if it still exists. False, and
        nothing is stored, if the response has lost this lock: other responses may have been added.
        A response with a ``lock`` that is stored already is left as it is, so a caller without an
        answer can repeat the call. ``usage`` is added to the usage log in the same transaction.
        """

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return the response; None if it is unknown, deleted or expired."""

    async def has_response(self, tenant: str, response_id: str) -> bool:
        """Return whether ``load`` would return a response, reading nothing of it."""

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        """Return the response and all its ancestors, oldest first, including deleted ancestors.

        None if the response itself is unknown, deleted or expired.
        """

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        """Return a page of the loadable responses in the order in which they were first saved;
        None if ``after`` is not one of them.
        """

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        """Return an item by its id: input or output of a loadable response, or part of a
        conversation."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response, and its run with all events. False if there is no such response."""

    async def delete_tenant(self, tenant: str) -> int:
        """Delete everything that is stored of a tenant, in short steps. The events of its
        background runs are deleted by the next sweep. Return how many rows were deleted. What is
        stored meanwhile may remain. API keys and the audit log stay."""

    async def usage(self, tenant: str) -> TenantUsage:
        """Return how much the store holds of a tenant."""

    async def reserve_response(
        self,
        tenant: str,
        response_id: str,
        owner: str,
        *,
        max_responses: int | None,
        max_bytes: int | None,
        lease_s: float,
    ) -> bool:
        """Reserve room for a response that will be saved.

        False if the tenant's responses and reservations would be more than ``max_responses``, or if
        its stored bytes have reached ``max_bytes``. If calls are concurrent, no more of them
        succeed than there is room for. A reservation counts until it is released, its response is
        saved, or its owner is dead (see ``RunStore.claim``). A response has at most one
        reservation; it belongs to the owner that made it last. A refused call changes nothing.
        """

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        """Remove a reservation if it belongs to this owner. Otherwise another owner has reserved
        room for another attempt at the same response."""

    async def check_writable(self) -> None:
        """Write a small value. Raises ``StoreError`` if the store does not answer or cannot be
        written."""

    async def clock(self, now: float) -> float:
        """Return the unix time by which data expires.

        A database with a clock of its own returns its time, so that a wrong clock of a server has
        no effect. Other stores return ``now``, the server's time.
        """

    async def load_sweep_record(self) -> SweepRecord | None:
        """Return when the store was swept last; None before the first sweep."""

    async def save_sweep_record(self, record: SweepRecord) -> None:
        """Replace the record of the last sweep."""

    async def sweep(self, retention: Retention, now: int) -> int:
        """Delete everything that expired, and free what no descendant needs. Return how many
        responses expired.

        Expired are: responses beyond ``retention`` (``now``, in unix seconds, is compared with
        ``created_at``), responses with an expiry time in the past, events of runs that ended more
        than ``max_log_age_s`` ago, files, contents of vector stores, records of the audit log, and
        claims of approvals older than ``max_age_s``. Old rows of the usage log are summed up.
        Responses of active runs are counted but not deleted. Afterwards the bounds hold. A sweep
        works in short steps, between which other calls proceed.
        """

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        """Store a new conversation with its first items, or new metadata of an existing one."""

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        """Return conversations without their items, oldest first. ``after``: the last conversation
        before the page. If it is unknown, return none."""

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        """Return the conversation without its items, or None."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and its list of items. Its responses stay. False if it is
        unknown."""

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        """Append items, each with an id that is new in the conversation. False if it is unknown."""

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """Return all items, oldest first; none if the conversation is unknown."""

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        """Return some items of a conversation, reading no others; none if it is unknown. None if
        ``query`` names an item that is not part of it."""

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        """Return the items of a conversation with these ids, oldest first."""

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        """Remove an item from a conversation. False if it is not part of it."""

    async def claim_approval(
        self, tenant: str, approval_id: str, response_id: str, now: int
    ) -> bool:
        """Record that a response runs the call that this approval allows, at ``now`` in unix
        seconds. False if another response does; True again for the same one.
        """

    async def release_approval(self, tenant: str, approval_id: str, response_id: str) -> None:
        """Undo the claim of a response that did not run the call."""

    async def get_or_create_secret(self, name: str, new_secret: bytes) -> bytes:
        """Return the secret of this name; store ``new_secret`` if there is none. All processes on
        this store get the same secret.
        """

    def use_blobs(self, blobs: BlobStorage, min_bytes: int) -> None:
        """From now on, keep the input, output and tokens of responses with at least ``min_bytes``
        bytes in blobs; 0: of no response. Responses that are already in blobs stay readable. A
        store may ignore this call."""

    async def has_blobs(self) -> bool:
        """Return whether parts of responses are in blobs."""

    async def move_blobs(self, source: BlobStorage | None, target: BlobStorage | None) -> int:
        """Move parts of responses from their blobs to ``target``, or into the store if ``target``
        is None. Return how many were moved. Raises ``StoreError``; parts that were moved before the
        error stay there."""

    async def close(self) -> None:
        """Finish pending operations. Later calls raise ``StoreError``."""
