"""The contract of a store: finished responses with their inputs and tokens, and conversations.

Each response is stored with a link to its parent, the response that it continues. Its row holds
only its own input, output and tokens. So a turn of a long conversation needs no more space than a
turn of a short one. The memory store is the reference implementation.
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
    """Limits on the data that a store keeps, summed over all tenants. None means no limit. The
    oldest responses are deleted first. If ``max_responses`` or ``max_bytes`` is exceeded, the
    oldest responses of the tenant with the most data are deleted.

    ``max_bytes`` counts all stored rows, including deleted responses that later responses of their
    chain still need.
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
        """Whether a response that was created ``age_s`` seconds ago must be deleted."""
        return self.max_age_s is not None and age_s > self.max_age_s


class Store(Protocol):
    """The contract of a store. All methods are per tenant. The id of another tenant's object counts
    as unknown.

    Safe for concurrent use in one event loop. The responses that continue a response are its
    descendants, and it is their ancestor. A deleted or expired response cannot be loaded by its id.
    The parts of it that its descendants need are kept until the last descendant is deleted.
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
        """The API keys of the server. Keys are not stored per tenant."""

    @property
    def audit(self) -> AuditLog:
        """The audit log: administrative acts and who did them."""

    @property
    def rates(self) -> RateStore:
        """Request counts of clients that have rate limits. The processes that share this store
        exchange the counts here."""

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
        """Store a response, or replace the stored response with the same id. Returns after the
        response is durable. A response that has a run must have ``background`` set in each call.

        ``stored.response.previous_response_id`` links to the parent. ``usage`` is added to the
        usage log in the same transaction.

        ``lock``: the lock of a conversation. The input and the output are appended to this
        conversation in the same transaction, if the conversation still exists. Returns False and
        stores nothing if the response has lost this lock, because other responses may have been
        added to the conversation. With ``lock``, a response that is already stored is left as it
        is. So a caller that got no answer can repeat the call.
        """

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return the response. Returns None if the response is unknown, deleted or expired."""

    async def has_response(self, tenant: str, response_id: str) -> bool:
        """Whether ``load`` would return a response. This method does not read the response
        itself."""

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        """Return the response and all its ancestors, oldest first, including deleted ancestors.

        Returns None if the response itself is unknown, deleted or expired.
        """

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        """Return a page of the loadable responses, in the order in which they were first saved.
        Returns None if ``query.after`` is not the id of a loadable response."""

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        """Return an item by its id. The item is in the input or output of a loadable response, or
        in a conversation. Returns None if there is no such item."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response, and its run with all events. Returns False if there is no such
        response."""

    async def delete_tenant(self, tenant: str) -> int:
        """Delete all stored data of a tenant, in short steps, and return how many rows were
        deleted. The next sweep deletes the events of the tenant's background runs. Data that is
        stored during the call may remain. API keys and the audit log are not deleted."""

    async def usage(self, tenant: str) -> TenantUsage:
        """Return how many responses, bytes and background runs the store holds for a tenant."""

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
        """Make a reservation: room for a response that will be saved later.

        A reservation counts like a saved response. Returns False and changes nothing if the
        tenant's responses and reservations would be more than ``max_responses``, or if its stored
        bytes have reached ``max_bytes``. Concurrent calls cannot together reserve more room than
        there is. A reservation counts until it is released, until its response is saved, or until
        its owner is dead (see ``RunStore.claim``). A response has at most one reservation, which
        belongs to the owner that reserved last.
        """

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        """Remove the reservation of a response if it belongs to ``owner``. A reservation of another
        owner stays, because that owner reserved room for another attempt at the same response."""

    async def check_writable(self) -> None:
        """Write a small value, as a test. Raises ``StoreError`` if the store does not answer or
        cannot be written."""

    async def clock(self, now: float) -> float:
        """Return the current unix time, by which the store decides whether data has expired.

        A database with a clock of its own returns its own time, so a wrong clock of a server has no
        effect. Other stores return ``now``, the server's time.
        """

    async def load_sweep_record(self) -> SweepRecord | None:
        """Return the record of the last sweep (deletion of expired data). Returns None before the
        first sweep."""

    async def save_sweep_record(self, record: SweepRecord) -> None:
        """Replace the record of the last sweep."""

    async def sweep(self, retention: Retention, now: int) -> int:
        """Delete all expired data, and the parts of deleted responses that no descendant needs.
        Return how many responses expired.

        The sweep deletes: responses beyond ``retention`` (``now``, in unix seconds, is compared
        with ``created_at``), responses with an expiry time in the past, events of runs that ended
        more than ``max_log_age_s`` ago, expired files, contents of expired vector stores, old
        records of the audit log, and claims of approvals older than ``max_age_s``. Old rows of the
        usage log are added up into sums. Responses of active runs count towards the limits but are
        not deleted. After the sweep the store is within the limits. A sweep works in short steps,
        between which other calls proceed.
        """

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        """Store a new conversation with its first items. If the conversation already exists,
        replace its metadata and append the items."""

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        """Return a page of conversations without their items, oldest first. ``after``: the id of
        the last conversation of the previous page. If ``after`` is unknown, the page is empty."""

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        """Return the conversation without its items. Returns None if the conversation is
        unknown."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and its list of items. Its responses stay. Returns False if the
        conversation is unknown."""

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        """Append items to a conversation. The id of each item must be new in the conversation.
        Returns False if the conversation is unknown."""

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """Return all items of a conversation, oldest first. Returns no items if the conversation is
        unknown."""

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        """Return the items of a conversation that ``query`` selects, without reading the other
        items. Returns no items if the conversation is unknown. Returns None if ``query`` names an
        item that is not part of the conversation."""

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        """Return the items of a conversation with these ids, oldest first."""

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        """Remove an item from a conversation. Returns False if the item is not part of the
        conversation."""

    async def claim_approval(
        self, tenant: str, approval_id: str, response_id: str, now: int
    ) -> bool:
        """Record that a response runs the tool call that this approval allows. ``now`` is in unix
        seconds. Returns False if another response has already claimed the approval. Returns True if
        the same response claims it again."""

    async def release_approval(self, tenant: str, approval_id: str, response_id: str) -> None:
        """Release an approval that this response has claimed. Called if the response did not run
        the tool call."""

    async def get_or_create_secret(self, name: str, new_secret: bytes) -> bytes:
        """Return the secret with this name. If there is no such secret, store and return
        ``new_secret``. All processes on this store get the same secret."""

    def use_blobs(self, blobs: BlobStorage, min_bytes: int) -> None:
        """From now on, keep the input, output and tokens of large responses in blobs. A response is
        large if these contents have at least ``min_bytes`` bytes together. If ``min_bytes`` is 0,
        new responses are not kept in blobs. Responses that are already in blobs stay readable. A
        store may ignore this call."""

    async def has_blobs(self) -> bool:
        """Whether the store keeps contents of responses in blobs."""

    async def move_blobs(self, source: BlobStorage | None, target: BlobStorage | None) -> int:
        """Move the contents of responses from blobs of ``source`` to blobs of ``target``. Return
        how many responses were moved.

        If ``target`` is None, the contents move into the store. If ``source`` is None, nothing is
        moved. Raises ``StoreError``. Contents that were moved before the error stay where they are.
        """

    async def close(self) -> None:
        """Close the store after its pending operations have finished. Later calls raise
        ``StoreError``."""
